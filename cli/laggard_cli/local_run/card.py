"""The card at the end of a local run, as data. What is not known is absent, never 0."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from laggard.shared import statefile
from laggard.shared.phases import Phase
from laggard_cli.clusters import RUN
from laggard_cli.diagnose.model import Failure, Rank
from laggard_cli.local_run.verdicts import Said
from laggard_cli.prometheus import Prometheus, quoted

_RANK, _PHASE, _REASON = "training_rank", "training_phase", "training_reason"
_OWN, _STEP, _PHASES = (f"training_{what}_duration_seconds" for what in ("step_own", "step", "phase"))
_COMMUNICATION = "communication"


@dataclass(frozen=True)
class Measured:
    """What the ranks measured over the whole run, but for steps that were excluded; means over steps and ranks."""

    step_seconds: float | None = None
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of a step by phase, in the order of a step."""
    ranks: tuple[Rank, ...] = ()
    """The slowest first."""
    hooks_share: float | None = None
    """Share of the steps' time that laggard's hooks took."""


@dataclass(frozen=True)
class Card:
    """All that the card says."""

    run: str
    ended: str
    """How the job ended: ``exit code 0``, ``SIGTERM``."""
    seconds: float
    """How long the job lasted."""
    ranks_seen: int
    """Ranks that left a state file on this machine."""
    steps: int | None
    """Of the rank that made most."""
    measured: Measured
    verdicts: tuple[Said, ...]
    judgement: str
    """Why there is no verdict, or none at the end; empty where there is one."""
    failure: Failure | None
    costs: tuple[str, ...]
    """What each verdict cost, as long as ``verdicts``; empty where that is not known."""
    processor_seconds: float
    """Processor time of node exporter, Prometheus and monitor, from their start to their end."""
    report: Path | None
    folder: Path | None
    """Where the servers' data was kept, if it was."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        content = asdict(self)
        content["verdicts"] = [
            {**asdict(said.verdict), "begin": said.begin, "end": said.end if said.over else None, "cost": cost or None}
            for said, cost in zip(self.verdicts, self.costs, strict=True)
        ]
        del content["costs"]
        for name in ("report", "folder"):
            content[name] = content[name] and str(content[name])
        return content


def seen(directory: Path, run: str) -> tuple[int, int | None]:
    """Return how many ranks of a run left a state file, and how many steps the rank with most of them made."""
    ranks: dict[int, int] = {}
    for path in directory.glob(f"*{statefile.SUFFIX}"):
        try:
            found = statefile.read(path)
        except statefile.StateFileError:
            continue
        # A run is named by us, or by its script.
        if found.facts.run == run:
            ranks[found.facts.rank] = max(ranks.get(found.facts.rank, 0), found.steps)
    return len(ranks), max(ranks.values(), default=None)


def measured(prometheus: Prometheus, run: str, at: float, seconds: float) -> Measured:
    """Return what was measured in the ``seconds`` before a time."""
    own = f"{{{RUN}={quoted(run)}}}[{math.ceil(seconds)}s]"

    def last(name: str, *labels: str) -> dict[tuple[str, ...], float]:
        by = ", ".join((RUN, *labels))
        found = prometheus.query(f"max by ({by}) (last_over_time({name}{own}))", at, by=(RUN, *labels))
        return {tuple(sample.labels[label] for label in labels): sample.value for sample in found}

    counts, steps = last(f"{_STEP}_count", _RANK), last(f"{_STEP}_sum", _RANK)
    count, total = sum(counts.values()), sum(steps.values())
    if not count or not total:
        return Measured()
    owns, phases = last(f"{_OWN}_sum", _RANK), last(f"{_PHASES}_sum", _RANK, _PHASE)
    hooks = last("training_telemetry_self_time_seconds_total", _RANK)
    left_out = last("training_steps_excluded_duration_seconds_total", _RANK, _REASON)
    sums: dict[str, float] = {}
    for (_, phase), value in phases.items():
        sums[phase] = sums.get(phase, 0.0) + value
    order = [phase.label for phase in (*sorted(set(Phase) - {Phase.OTHER}), Phase.OTHER)]
    names = sorted(sums, key=lambda phase: order.index(phase) if phase in order else len(order))
    ranks = [
        Rank(rank[0], value / counts[rank], _wait(phases.get((*rank, _COMMUNICATION)), counts[rank]))
        for rank, value in owns.items()
        if counts.get(rank)
    ]
    return Measured(
        step_seconds=total / count,
        phases={name: sums[name] / count for name in names},
        ranks=tuple(sorted(ranks, key=lambda rank: rank.own_seconds, reverse=True)),
        # The hooks of steps that are in no histogram took time, too.
        hooks_share=sum(hooks.values()) / (total + sum(left_out.values())) if hooks else None,
    )


def _wait(seconds: float | None, count: float) -> float | None:
    return None if seconds is None else seconds / count
