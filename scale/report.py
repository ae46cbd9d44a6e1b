"""The figures as Markdown, for a terminal and for a document, and as a picture."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from scale.measure import Result

_GIB = 2**30
#: Between these lines of a document stand the figures.
_BEGIN, _END = "<!-- figures: made by python -m scale --document -->", "<!-- end of figures -->"
_COLUMNS = (
    "ranks", "step", "rules", "series", "samples a second", "processors", "memory", "all groups of rules, once each",
    "longest group", "missed", "slowest scrape", "failed scrapes", "straggler named after", "hang named after",
)  # fmt: skip


def table(results: list[Result]) -> str:
    """Return a row for each number of ranks."""
    rows = [" | ".join(_COLUMNS), "|".join(["---:"] * len(_COLUMNS)), *(" | ".join(_cells(each)) for each in results)]
    return "\n".join(f"| {row} |" for row in rows)


def _cells(result: Result) -> list[str]:
    return [
        f"{result.ranks:,}",
        f"{result.step:g} s",
        "yes" if result.rules else "no",
        f"{result.series:,.0f}",
        f"{result.samples_each_second:,.0f}",
        f"{result.processors:.2f}",
        f"{result.resident_bytes / _GIB:.1f} GiB",
        f"{result.rules_seconds:.2f} s",
        f"{result.longest_group_seconds:.2f} s",
        f"{result.missed_evaluations:.0f}",
        f"{result.slowest_scrape_seconds:.2f} s",
        f"{result.failed_scrapes:.0f}",
        _when(result, "TrainingStraggler slow"),
        _when(result, "TrainingStalled hung"),
    ]


def _when(result: Result, what: str) -> str:
    if any(each.startswith(what) for each in result.not_said):
        return "not"
    found = [seconds for name, seconds in result.alerts.items() if name.startswith(what) and seconds > 0]
    return f"{min(found):.0f} s" if found else ""


def with_figures(document: str, results: list[Result]) -> str:
    """Return a document with the figures in their place. Raises :class:`ValueError` where it has none."""
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}\n\n{table(results)}\n\n{end}{after}"


def picture(results: list[Result]) -> str:
    """Return how processors, memory and the rules' time grow with the ranks, on two logarithmic scales."""
    results = [each for each in results if each.rules]
    lines = {
        "processors in use": ("#2f6f9f", [each.processors for each in results]),
        "memory, GiB": ("#e08e2b", [each.resident_bytes / _GIB for each in results]),
        "all groups of rules once, seconds": ("#5a8f4e", [each.rules_seconds for each in results]),
    }
    ranks = [each.ranks for each in results]
    lowest = math.floor(math.log10(min(value for _, values in lines.values() for value in values)))
    highest = math.ceil(math.log10(max(value for _, values in lines.values() for value in values)))
    left, right = math.floor(math.log10(min(ranks))), math.ceil(math.log10(max(ranks)))

    def across(value: float) -> float:
        return 60 + 560 * (math.log10(value) - left) / (right - left)

    def down(value: float) -> float:
        return 330 - 280 * (math.log10(value) - lowest) / (highest - lowest)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="380" font-family="sans-serif" font-size="12">',
        '<rect width="640" height="380" fill="#ffffff"/>',
    ]
    for power in range(lowest, highest + 1):
        y = down(10.0**power)
        parts.append(f'<line x1="60" x2="620" y1="{y:.0f}" y2="{y:.0f}" stroke="#dddddd"/>')
        parts.append(f'<text x="52" y="{y + 4:.0f}" text-anchor="end">{10.0**power:g}</text>')
    for power in range(left, right + 1):
        x = across(10.0**power)
        parts.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="50" y2="330" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.0f}" y="350" text-anchor="middle">{10**power:,}</text>')
    parts.append('<text x="340" y="370" text-anchor="middle">ranks</text>')
    for place, (name, (colour, values)) in enumerate(lines.items()):
        points = [(across(count), down(value)) for count, value in zip(ranks, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        parts.append(f'<rect x="{60 + 190 * place}" y="16" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{76 + 190 * place}" y="25">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
