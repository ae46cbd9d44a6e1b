"""What a slow rank does in a step, beside its peers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from laggard.shared.metrics import PHASE_DURATION, STEP_DURATION
from laggard.shared.names import prometheus_name
from laggard_cli.prometheus import quoted
from laggard_cli.report.costs import concerned
from laggard_cli.report.history import PHASE, RANK, Counted, History
from laggard_cli.report.verdicts import Problem

#: What the cost of a verdict on ranks that work longer than their peers is made of.
_OWN_TIME = re.compile(r"\b(run_rank|run_peer_group_host):training_step_own_seconds:")


@dataclass(frozen=True)
class Beside:
    """Seconds of a step by phase, of the ranks that are named and of the mean of all others."""

    named: dict[str, float]
    peers: dict[str, float]


def beside(server: Counted, history: History, problem: Problem) -> Beside | None:
    """Return the phases of those that a problem names beside those of their peers, while it lasted."""
    rows = concerned(history, problem)
    if not _OWN_TIME.search(problem.cost) or not rows or len(rows) == len(history.ranks):
        return None
    server.say("phases of the slow ranks")
    names = quoted("|".join(re.escape(history.ranks[row]) for row in rows))
    length = max(history.span.window, math.ceil(problem.end - problem.begin))

    def phases(operator: str) -> dict[str, float]:
        whose = history.run.matcher(f"{RANK}{operator}{names}") + f"[{length:.0f}s]"
        expression = (
            f"sum by ({PHASE}) (max by ({RANK}, {PHASE}) (rate({prometheus_name(PHASE_DURATION)}_sum{whose}))) "
            f"/ on () group_left () sum(max by ({RANK}) (rate({prometheus_name(STEP_DURATION)}_count{whose})))"
        )
        found = server.at(expression, problem.end)
        return {each.labels.get(PHASE, ""): each.value for each in found if math.isfinite(each.value)}

    named, peers = phases("=~"), phases("!~")
    return Beside(named, peers) if named and peers else None
