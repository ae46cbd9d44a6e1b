"""Which runs there are: one with a slow rank, one that hangs, and the rest, of which one begins anew."""

from __future__ import annotations

from dataclasses import dataclass

from lab.evaluation.model.faults import Hang, Slow
from lab.evaluation.model.job import Gpus, Job, Loader, Numbers, Pause, Usage
from laggard.shared.phases import Phase

SLOW_RUN, HUNG_RUN = "slow", "hung"
_SLOW_FACTOR = 1.5
#: Ranks of a run that is neither.
_OTHERS = 256


@dataclass(frozen=True)
class Culprit:
    """An alert that must come, and the run and rank that it must name."""

    alert: str
    run: str
    rank: int


def jobs(ranks: int, step: float, fault: float) -> list[Job]:
    """Return runs of so many ranks together, half of them in one, a quarter in another.

    Args:
        ranks: in all; at least 16.
        step: seconds of a rank's own work in a step.
        fault: seconds after the beginning at which one run gets a slow rank, another hangs and a third begins anew.
    """
    half, quarter = ranks // 2, ranks // 4
    runs = [
        _job(SLOW_RUN, half, step, Slow(begin=fault, ranks=(half // 3,), phase=Phase.FORWARD, factor=_SLOW_FACTOR)),
        _job(HUNG_RUN, quarter, step, Hang(begin=fault, ranks=(quarter // 3,), phase=Phase.BACKWARD)),
    ]
    left = ranks - half - quarter
    for number, first in enumerate(range(0, left, _OTHERS)):
        restarts = () if number else (fault,)
        runs.append(_job(f"other-{number}", min(_OTHERS, left - first), step, restarts=restarts))
    return runs


def culprits(runs: list[Job]) -> list[Culprit]:
    """Return what must be said of them."""
    kinds = {Slow: "TrainingStraggler", Hang: "TrainingStalled"}
    return [
        Culprit(alert, job.run, fault.ranks[0])
        for job in runs
        for kind, alert in kinds.items()
        for fault in job.of(kind)
    ]


def _job(run: str, ranks: int, step: float, *faults: Slow | Hang, restarts: tuple[float, ...] = ()) -> Job:
    return Job(
        run=run,
        ranks=ranks,
        own=step,
        pauses=(Pause(Phase.CHECKPOINT, every=600.0, seconds=5.0),),
        loader=Loader(workers=4),
        gpus=Gpus(),
        usage=Usage(),
        numbers=Numbers(),
        workload="model",
        faults=faults,
        restarts=restarts,
        seed=ranks,
    )
