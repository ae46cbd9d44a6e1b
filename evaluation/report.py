"""The result as a table for a terminal and for a document, and as a picture."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

_COLUMNS = ("cases", "near", "found", "missed", "false", "rank", "phase", "precision", "recall", "median delay")
_ROW = 26


def table(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    parts = [
        _rows("alert", result["alerts"] | {"all": result["pooled"]}),
        _rows("ranks", result["sizes"]),
        _rows("own time of a step", result["steps"]),
        _rows("how much slower a rank is", result["effects"]),
        "Healthy runs: {cases}, with an alert: {with_alerts}.".format(**result["healthy"]),
    ]
    if result["failed_rules"]:
        parts.append(f"Rules that failed: {result['failed_rules']}")
    return "\n\n".join(parts)


def _rows(head: str, groups: dict[str, Any]) -> str:
    lines = [f"| {head} | {' | '.join(_COLUMNS)} |", "|" + "---|" * (len(_COLUMNS) + 1)]
    for name, rates in groups.items():
        cells = [
            str(rates.get("positive_cases", "")),
            str(rates.get("near_misses", "")),
            *(str(rates[key]) for key in ("found", "missed", "false", "wrong_rank", "wrong_phase")),
            *("" if rates[key] is None else f"{rates[key]:.3f}" for key in ("precision", "recall")),
            "" if rates["median_delay"] is None else f"{rates['median_delay']:.0f} s",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(result: dict[str, Any]) -> str:
    """Return precision and recall of each alert as an SVG with one pair of bars a row."""
    rows = {**result["alerts"], "all": result["pooled"]}
    height = _ROW * len(rows) + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="720" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14">Precision and recall, {result["cases"]} simulated runs, seeds '
        f"{', '.join(map(str, result['seeds']))}</text>",
        '<rect x="240" y="30" width="10" height="10" fill="#2f6f9f"/><text x="256" y="39">precision</text>',
        '<rect x="340" y="30" width="10" height="10" fill="#e08e2b"/><text x="356" y="39">recall</text>',
    ]
    for number, (name, rates) in enumerate(rows.items()):
        top = 50 + number * _ROW
        parts.append(f'<text x="228" y="{top + 15}" text-anchor="end">{escape(name)}</text>')
        for offset, key, colour in ((2, "precision", "#2f6f9f"), (12, "recall", "#e08e2b")):
            if rates[key] is not None:
                width = 380 * rates[key]
                parts.append(f'<rect x="240" y="{top + offset}" width="{width:.1f}" height="9" fill="{colour}"/>')
                parts.append(
                    f'<text x="{246 + width:.1f}" y="{top + offset + 9}" font-size="10">{rates[key]:.3f}</text>'
                )
    return "\n".join([*parts, "</svg>"]) + "\n"
