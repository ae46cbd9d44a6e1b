"""Makes the table of docs/gpu.md: which fault of a GPU each exporter shows, by which series, and what stays unknown.

The unit tests of the rules play the same table (``promtool-tests/gpu_sources.py``).
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from tables import code, codes, row

_SOURCES = Path(__file__).parents[2] / "promtool-tests" / "gpu_sources.py"


def sources() -> str:
    """Return the table: a row for each fault, a column for each exporter."""
    table: dict[str, Any] = runpy.run_path(str(_SOURCES))
    shown = list(table["SOURCES"].values())
    rows = [row("fault, verdict", *(source.title for source in shown)), "|---" * (len(shown) + 1) + "|\n"]
    for name, fault in table["FAULTS"].items():
        rows.append(row(f"{fault.text}: {code(fault.alert)}", *(_cell(source, name, fault) for source in shown)))
    return "".join(rows)


def _cell(source: Any, name: str, fault: Any) -> str:
    if name in source.unknown:
        return f"unknown: {source.unknown[name]}"
    facts = list(fault.changes) or [name]
    if name == "held":
        facts = ["memory_used", "memory_free", "utilization"]
    series = [source.shown[fact].series for fact in facts if fact in source.shown]
    return codes(series or source.also[name])
