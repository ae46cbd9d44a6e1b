"""What came out, as JSON, and the table of faults for docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.chaos.faults import FAULTS, PROCESS_SECONDS, STALL_MARGIN_SECONDS, Fault
from lab.chaos.own import OWN_FAULTS
from lab.chaos.own_play import OwnResult
from lab.chaos.play import Result
from lab.printing import between, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN, _END = "<!-- tables: python -m lab.chaos --document -->", "<!-- end of tables -->"


def plain(results: Sequence[Result], own: Sequence[OwnResult]) -> dict[str, Any]:
    """Return the results as what JSON can say."""
    return {
        "jobs": [
            {
                "fault": result.case.fault.name,
                "ranks": result.case.world,
                "culprit": result.case.culprit,
                "passed": result.passed,
                "seconds": result.seconds,
                "limit": result.limit,
                "right": result.right,
                "wrong": result.wrong,
                "problem": result.problem,
                "skipped": result.skipped,
            }
            for result in results
        ],
        "laggard": [
            {
                "fault": result.fault.name,
                "passed": result.passed,
                "problems": result.problems,
                "skipped": result.skipped,
                "cost": asdict(result.cost) if result.cost else None,
            }
            for result in own
        ],
    }


def document(text: str) -> str:
    """Return the document with the tables as they should be; errors as those of ``between``."""
    return between(text, _BEGIN, _END, _tables())


def _tables() -> str:
    broken = [fault for fault in FAULTS if fault.silent is None]
    fine = [fault for fault in FAULTS if fault.silent is not None]
    parts = [
        "### Faults of a job",
        table(
            ("fault", "what you see", "within", "test"),
            [(fault.title, _sees(fault), _within(fault), f"`{fault.name}`") for fault in broken],
            align="l",
        ),
        "### What is no fault",
        table(
            ("run", "what you see", "test"), [(fault.title, "nothing", f"`{fault.name}`") for fault in fine], align="l"
        ),
        "### Faults of laggard",
        table(
            ("fault", "what you see", "what is lost", "test"),
            [(fault.title, fault.sees, fault.lost, f"`{fault.name}`") for fault in OWN_FAULTS],
            align="l",
        ),
    ]
    return "\n\n".join(parts)


def _sees(fault: Fault) -> str:
    return f"{' or '.join(fault.alerts)}, {'which names the rank' if fault.culprit else 'which names no rank'}"


def _within(fault: Fault) -> str:
    return f"{PROCESS_SECONDS:.0f} s" if fault.process else f"limit + {STALL_MARGIN_SECONDS:.0f} s"
