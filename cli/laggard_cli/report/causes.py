"""Which verdicts follow from others: as Alertmanager holds symptoms back while their cause fires."""

from __future__ import annotations

from collections.abc import Iterable

from laggard_cli.pack import SEVERITIES
from laggard_cli.report.history import HOST, RANK
from laggard_cli.report.verdicts import Problem

_STANDS = "Stalled RankMissing RankDied RunFailed RankFrozen RestartLoop"
_SPEED = "Straggler NodeSlow StageSlow DataImbalance NetworkBursty Contention InputBound CommunicationBound Regression"
_EFFICIENCY = (
    "ThermalSlowdown PowerSlowdown InputWorkersBusy InputStorageSlow CopyBound HiddenSerialization GarbageCollection "
    "Jitter LongTail GpuUnderused GpuTensorIdle GpuIdle TelemetryDown"
)
#: Causes, what follows from them, and the label in which both must agree beside the run: inhibit_rules of
#: deploy/alertmanager/alertmanager.yml, without the word Training.
FOLLOWS = (
    (
        _STANDS,
        f"{_SPEED} {_EFFICIENCY}",
        "",
    ),
    ("RankDied RankFrozen", "Stalled", ""),
    ("RankDied", "RankMissing", RANK),
    ("GpuLost GpuXidCritical", "RankDied RankFrozen Straggler", RANK),
    ("ThermalSlowdown PowerSlowdown Contention", "Straggler GpuThrottled GpuClockLow", RANK),
    ("NodeSlow", "Straggler Contention", HOST),
    ("GpuIdle", "GpuUnderused GpuTensorIdle", ""),
    ("InputWorkersBusy InputStorageSlow", "InputBound", ""),
    ("DataImbalance NetworkBursty Contention GarbageCollection", "Jitter LongTail", ""),
    ("RankClash", _SPEED, ""),
)


def cause(problem: Problem, problems: Iterable[Problem]) -> Problem | None:
    """Return the problem from which another one follows, if both were there at the same time."""
    name = problem.alert.removeprefix("Training")
    for other in problems:
        above = SEVERITIES.index(other.severity) <= SEVERITIES.index(problem.severity)
        together = other.begin <= problem.end and problem.begin <= other.end
        if other is problem or not above or not together:
            continue
        for causes, symptoms, label in FOLLOWS:
            if other.alert.removeprefix("Training") in causes.split() and name in symptoms.split():
                alike = not label or set(problem.members(label)) <= set(other.members(label))
                if alike and (not label or problem.members(label)):
                    return other
    return None
