"""A verdict about a hang, for a person and for a program."""

from __future__ import annotations

from typing import Any

from laggard_exporter.hang.evidence import Wait
from laggard_exporter.hang.verdict import Culprit, Verdict, ranks_as_text

#: Lines of culprits, of waits and of files left out that a person reads.
SHOWN = 20


def lines(verdict: Verdict, left_out: dict[str, str]) -> list[str]:
    """Return what a person reads."""
    found = [f"{verdict.dumps} dumps of {verdict.ranks} ranks"]
    found += [f"  left out {name}: {reason}" for name, reason in list(left_out.items())[:SHOWN]]
    found += [f"  and {len(left_out) - SHOWN} more files"] if len(left_out) > SHOWN else []
    if not verdict.dumps:
        return [*found, "", "No verdict: there is no dump, and NCCL RAS alone proves nothing."]
    if verdict.culprits:
        ranks = ranks_as_text(culprit.rank for culprit in verdict.culprits)
        found += ["", f"Culprit{'s' if len(verdict.culprits) > 1 else ''}: {ranks}"]
        found += [f"  rank {culprit.rank} {_because(culprit)}" for culprit in verdict.culprits[:SHOWN]]
        found += [f"  and {len(verdict.culprits) - SHOWN} more"] if len(verdict.culprits) > SHOWN else []
    else:
        found += ["", "No verdict: the dumps do not tell who is to blame."]
    found += [f"  {remark}" for remark in verdict.remarks]
    if verdict.waits:
        found += ["", "Who waits for whom:"]
        found += [f"  {_wait(wait)}" for wait in verdict.waits[:SHOWN]]
        found += [f"  and {len(verdict.waits) - SHOWN} more collectives"] if len(verdict.waits) > SHOWN else []
    return found


def _because(culprit: Culprit) -> str:
    wait = culprit.wait
    last = "" if culprit.newest is None else f", the newest that it issued there is {culprit.newest}"
    differs = f"; {culprit.difference}" if culprit.difference else ""
    return f"{culprit.reason.value}: {_who_waits(wait)} in {wait}{last}{differs}"


def _wait(wait: Wait) -> str:
    calls = ", ".join(f"{name} on {count}" for name, count in wait.operations.items())
    called = next(iter(wait.operations)) if len(wait.operations) == 1 else calls
    nobody = "nobody known: other dumps are too short" if wait.unknown else "nobody: all members have issued it"
    for_whom = ranks_as_text(wait.missing) if wait.missing else nobody
    number = "" if wait.transfer else f" {wait.sequence}"
    return f"{called}{number} of group {wait.group}: {_who_waits(wait)} for {for_whom}"


def _who_waits(wait: Wait) -> str:
    return f"{ranks_as_text(wait.waiting)} wait{'s' if len(wait.waiting) == 1 else ''}"


def plain(verdict: Verdict) -> dict[str, Any]:
    """Return the same for a program."""
    return {
        "ranks": verdict.ranks,
        "dumps": verdict.dumps,
        "culprits": [
            {
                "rank": culprit.rank,
                "reason": culprit.reason.name.lower(),
                "group": str(culprit.wait.group),
                "sequence": culprit.wait.sequence,
                "newest": culprit.newest,
                "waiting": list(culprit.wait.waiting),
                **({"difference": culprit.difference} if culprit.difference else {}),
            }
            for culprit in verdict.culprits
        ],
        "waits": [
            {
                "group": str(wait.group),
                "sequence": wait.sequence,
                "operations": dict(wait.operations),
                "waiting": list(wait.waiting),
                "missing": list(wait.missing),
            }
            for wait in verdict.waits
        ],
        "remarks": list(verdict.remarks),
    }
