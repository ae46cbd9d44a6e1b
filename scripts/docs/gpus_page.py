"""Makes the tables of docs/gpus.md: what is read of AMD's GPUs, and which fault of a GPU each exporter shows.

The unit tests of the rules play the latter (``promtool-tests/gpu_sources.py``).
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from laggard_exporter.amd_smi import table as amd
from laggard_exporter.gpus.readings import Call
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


def amd_smi() -> str:
    """Return the table of what is read of AMD's GPUs: a row for each series, its functions and their fields."""
    rows = [row("series", "AMD SMI"), "|---|---|\n"]
    for reading in amd.READINGS:
        label = f"{{{reading.family.labels[1]}={reading.labels[0]}}}" if reading.labels else ""
        asked = (f"{source.function} {source.attribute or _numbers(source)}".strip() for source in reading.sources)
        rows.append(row(code(f"{reading.family.name}{label}"), ", else ".join(code(each) for each in asked)))
    for reason, fields in amd.RESIDENCIES.items():
        series = f"gpu_clock_event_seconds_total{{reason={reason}}}"
        window = f"the greatest share of {codes(fields)} in {code(amd.WINDOW[0])}, over {code(amd.WINDOW[1])}"
        rows.append(row(code(series), f"{code(amd.METRICS)}: {window}"))
    reasons = codes(f"gpu_clock_event_active{{reason={reason}}}" for reason in amd.THROTTLE_BITS)
    rows.append(row(reasons, f"{code(f'{amd.METRICS} {amd.THROTTLE_FIELD}')}, where nothing is accumulated"))
    return "".join(rows)


def _numbers(source: Call) -> str:
    return f"({', '.join(map(str, source.arguments))})" if source.arguments else ""


def _cell(source: Any, name: str, fault: Any) -> str:
    if name in source.unknown:
        return f"unknown: {source.unknown[name]}"
    facts = list(fault.changes) or [name]
    if name == "held":
        facts = ["memory_used", "memory_free", "utilization"]
    series = [source.shown[fact].series for fact in facts if fact in source.shown]
    return codes(series or source.also[name])
