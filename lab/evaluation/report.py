"""The result as Markdown, for a terminal and for a document, and as a picture."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from lab.printing import between
from lab.printing import table as printed

#: Figures of a row: where they stand, and their heading.
_COLUMNS = {
    "found": "found",
    "missed": "missed",
    "false": "false",
    "wrong_rank": "wrong rank",
    "wrong_phase": "wrong phase",
    "precision": "precision",
    "recall": "recall",
    "median_delay": "median delay",
}
_RUNS = {"positive_runs": "runs with it", "near_misses": "near misses"}
_ROW = 26


def table(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    parts = [
        _rows("alert", result["alerts"] | {"all": result["pooled"]}, _RUNS | _COLUMNS),
        "Healthy runs: {runs}, with an alert: {with_alerts}.".format(**result["healthy"]),
        "TrainingStraggler by size, by the own time of a step, and by how many times longer it is on the slow rank:",
        _rows("ranks", result["sizes"], _COLUMNS),
        _rows("own time", result["steps"], _COLUMNS),
        _rows("effect", result["effects"], _COLUMNS),
        "Median time to detect, as a share of what it should be at most:",
        "\n".join(
            f"- {name}: {found['median']:.2f} ({found['runs']} verdicts)" for name, found in result["targets"].items()
        ),
        "What fired falsely, and in how many runs, by what was wrong with the run; what is not listed had nothing:",
        _confusion(result["confusion"]),
    ]
    if result["others"]:
        parts.append("Alerts that no scenario judges, by the scenarios in which they fired:")
        parts += [
            f"- {alert}: {', '.join(f'{name} {count}' for name, count in found.items())}"
            for alert, found in result["others"].items()
        ]
    if result["failed_rules"]:
        parts.append(f"Rules that failed: {result['failed_rules']}")
    return "\n\n".join(parts)


#: Between these lines of a document stand the figures.
BEGIN, END = "<!-- figures: made by python -m lab.evaluation --document -->", "<!-- end of figures -->"


def with_figures(document: str, result: dict[str, Any]) -> str:
    """Return a document with the figures in their place; errors as those of :func:`lab.printing.between`."""
    seeds = " and ".join(map(str, result["seeds"]))
    head = f"Seeds {seeds}: {result['runs']} runs of {result['scenarios']} scenarios."
    return between(document, BEGIN, END, f"{head}\n\n{table(result)}")


def _confusion(confusion: dict[str, dict[str, Any]]) -> str:
    rows = [
        (truth or "nothing", row["runs"], ", ".join(f"{alert} {count}" for alert, count in row["false"].items()))
        for truth, row in confusion.items()
        if row["false"]
    ]
    return printed(("what is wrong", "runs", "what fired falsely"), rows, align="lrl")


def _rows(head: str, groups: dict[str, Any], columns: dict[str, str]) -> str:
    rows = [[name, *(_cell(key, rates.get(key)) for key in columns)] for name, rates in groups.items()]
    return printed((head, *columns.values()), rows)


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f} s" if key == "median_delay" else f"{value:.3f}" if isinstance(value, float) else str(value)


def picture(result: dict[str, Any]) -> str:
    """Return precision and recall of each alert as an SVG with one pair of bars a row."""
    rows = {**result["alerts"], "all": result["pooled"]}
    seeds = ", ".join(map(str, result["seeds"]))
    height = _ROW * len(rows) + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" font-family="sans-serif">',
        f'<rect width="720" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14">{result["runs"]} simulated runs, seeds {seeds}</text>',
        '<g font-size="12">',
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
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"
