"""Tables in Markdown, their place in a document, and how figures grow with the number of ranks, as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

_COLOURS = ("#2f6f9f", "#e08e2b", "#5a8f4e")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, align: str = "lr") -> str:
    """Return a table.

    Args:
        columns: their headings.
        rows: the cells of each.
        align: ``l`` or ``r`` for each column; the last one is that of all further columns.
    """
    sides = align.ljust(len(columns), align[-1])
    lines = [columns, *rows]
    text = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("---" if side == "l" else "---:" for side in sides) + "|")
    return "\n".join(text)


def between(document: str, first: str, last: str, text: str) -> str:
    """Return a document with a text between two of its lines.

    Raises:
        ValueError: it has no such lines.
    """
    before, begin, rest = document.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the document has no lines {first!r} and {last!r}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def growth(ranks: Sequence[int], lines: Mapping[str, Sequence[float]]) -> str:
    """Return an SVG of up to three lines over the ranks, on two logarithmic scales.

    Args:
        ranks: of each point, two or more that differ.
        lines: name of each line, with its unit, to its values, one for each number of ranks and above zero.
    """
    lowest = math.floor(math.log10(min(value for values in lines.values() for value in values)))
    highest = math.ceil(math.log10(max(value for values in lines.values() for value in values)))
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
    for place, ((name, values), colour) in enumerate(zip(lines.items(), _COLOURS, strict=False)):
        points = [(across(count), down(value)) for count, value in zip(ranks, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        parts.append(f'<rect x="{60 + 190 * place}" y="16" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{76 + 190 * place}" y="25">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
