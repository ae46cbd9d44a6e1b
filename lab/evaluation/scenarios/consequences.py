"""What follows from a case beside what it is about, by the step model's own truth and not by what it exposes.

A run whose steps vary much waits in every step for another rank, and is unbalanced; a stage that is long by design is a
slow stage. What is clearly beyond a limit must be said, what is near it may, and what is below it must not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.draw import unsteady_patience
from lab.evaluation.model.blocks import Maker
from lab.evaluation.model.faults import Bursts, Death, Hang, Recompile, Transfer
from lab.evaluation.model.job import OWN, Case, Expectation, Job
from lab.evaluation.model.schedule import ends
from laggard.shared.phases import Phase
from laggard_cli.pack import threshold

#: Below the first share of a limit an alert must not fire, above the second it must.
_NEAR, _CLEAR = 0.85, 1.2
_STEPS = 256
#: Where one in twenty begins is known of so many steps with a deviation of 1.4 %: it is between these shares.
_FEWER, _MORE = 0.936, 0.964
#: Ranks whose mean own times differ by less than this are alike.
_AGREEMENT = 1.05
_FORWARD, _BACKWARD = OWN.index(Phase.FORWARD), OWN.index(Phase.BACKWARD)
#: Phases whose share of the step makes an alert, where it is not what the case is about, and the threshold of each.
_SHARES = {
    Phase.DATA: ("TrainingInputBound", "input_bound_share"),
    Phase.H2D: ("TrainingCopyBound", "copy_bound_share"),
    Phase.OTHER: ("TrainingHiddenSerialization", "serialization_share"),
}
#: Seconds for a verdict on steps that differ.
_UNSTEADY_SECONDS = 1500.0


@dataclass
class _Truth:
    """What the newest steps of a job are like, as shares of the step."""

    step: float
    #: How much longer the usual step is than one in which all ranks of a stage have the same work.
    imbalance: float
    waiting: float
    #: The slowest rank's mean own time over the usual one of its stage.
    agreement: float
    #: By what one step in twenty is longer, at least and at most.
    jitter: dict[str, tuple[float, float]]
    tail: dict[str, float]
    #: Of the rank that is best off.
    shares: dict[str, float]


def with_consequences(case: Case) -> Case:
    """Add what else must fire, and what may."""
    job = case.job
    at = max([job.start + job.startup + 60, *(fault.begin + getattr(fault, "ramp", 0) + 1 for fault in job.faults)])
    found = _Found(case, at)
    now = _look(job, at)
    before = _look(job, job.start + job.startup) if job.faults else now
    _steps(found, before, now)
    _stages(found)
    _losses(found, max(before.waiting, now.waiting))
    return replace(
        case, expected=(*case.expected, *found.expected), allowed=tuple(sorted({*case.allowed, *found.allowed}))
    )


class _Found:
    """What follows from a case."""

    def __init__(self, case: Case, at: float) -> None:
        self.job, self.at, self.left = case.job, at, case.job.horizon - at
        self._known = {each.alert for each in case.expected} | set(case.allowed)
        self.expected: list[Expectation] = []
        self.allowed: set[str] = set()

    def judge(self, alert: str, values: tuple[float, ...], limit: float, *, enough: bool = False, **says: Any) -> None:
        """Say of an alert whether it must fire by now, or may, since it should now or before."""
        if alert in self._known or max(values) < _NEAR * limit:
            return
        if enough and values[-1] >= _CLEAR * limit:
            # Where it was so before the fault, it was so from the start.
            begin = self.at if values[0] < _NEAR * limit else self.job.start + self.job.startup
            self.expected.append(Expectation(alert, **{"begin": begin, **says}))
        else:
            self.allowed.add(alert)


def _steps(found: _Found, before: _Truth, now: _Truth) -> None:
    job = found.job
    if job.measures_communication:
        # The floor of the waits is the least of 256 steps. Fewer ranks wait less for one another, so what was so before
        # a restart with fewer may be said and need not.
        enough = job.ranks_after is None and found.left > unsteady_patience(now.step) + _STEPS * now.step + 120
        steady = now.agreement < _AGREEMENT
        # The rule takes the least transfer of these steps for the usual one, and so a little more for waiting.
        waiting = tuple(1.15 * each.imbalance for each in (before, now))
        found.judge("TrainingDataImbalance", waiting, threshold("imbalance_share"), enough=enough and steady)
    enough = found.left > _UNSTEADY_SECONDS + 600 * job.own
    for phase in now.jitter:
        # The quantiles of one rank are taken over so few steps that they vary themselves.
        least, most = now.jitter[phase]
        jitter = before.jitter[phase][1], most, least
        found.judge("TrainingJitter", jitter, threshold("jitter_share"), enough=enough, detail=phase)
        found.judge("TrainingLongTail", (before.tail[phase], now.tail[phase]), 0.75 * threshold("long_tail_share"))
    for phase, (alert, limit) in _SHARES.items():
        found.judge(alert, (now.shares[phase.label],), threshold(limit))


def _stages(found: _Found) -> None:
    job = found.job
    ratio = max(job.stages) / min(job.stages)
    if ratio > 1 and job.measures_communication:
        culprit = f"stage-{job.stages.index(max(job.stages))}"
        enough = not job.faults and found.left > 900 + 60 * job.own
        # Of two stages whose ranks differ by 2 % themselves.
        limit = 1 + 0.9 * (threshold("stage_score") - 1)
        found.judge(
            "TrainingStageSlow", (ratio,), limit, enough=enough, culprits=(culprit,), begin=job.start + job.startup
        )


def _losses(found: _Found, waiting: float) -> None:
    job = found.job
    lived = job.horizon - job.start - job.startup
    shares = {pause: min(pause.seconds / pause.every, 1) for pause in job.pauses}
    saving = sum(share for pause, share in shares.items() if pause.phase is Phase.CHECKPOINT)
    found.judge("TrainingCheckpointSlow", (saving * min(1.0, lived / 3600),), threshold("checkpoint_share"))
    starting = (job.startup + job.compile + job.warmup * job.own) / 3600
    stopped = any(isinstance(fault, (Hang, Death)) for fault in job.faults) or bool(job.restarts)
    # What compiles anew, and what waits for the first batch of an epoch.
    again = sum(fault.seconds / fault.every for fault in job.of(Recompile))
    again += job.epochs[1] / job.epochs[0] if job.epochs else 0
    goodput = (1 - sum(shares.values()) - again) * (1 - waiting) - starting
    if lived > threshold("goodput_seconds") and (stopped or goodput < threshold("goodput_ratio") / _NEAR):
        found.judge("TrainingGoodputLow", (1.0,), 1.0)


def _uneven(job: Job, at: float) -> NDArray[np.float64]:
    """Return by how much each step is longer than one of as much work that all ranks of a stage share evenly."""
    faults = tuple(fault for fault in job.faults if not isinstance(fault, (Transfer, Bursts)))
    job = replace(job, transfer=0.0, faults=faults)
    block = Maker(job, job.ranks, at, job.seed).make(at, np.zeros(job.ranks), _STEPS)
    stages, pipeline = len(job.stages), job.pipeline
    of_stages = block.work.mean(axis=1).reshape(len(OWN), stages, -1).mean(axis=2)[:, :, None, None]
    if pipeline:
        parts = np.full((pipeline.micro_batches, 1, 1), 1 / pipeline.micro_batches)
        around = of_stages.sum(axis=0) - of_stages[_FORWARD] - of_stages[_BACKWARD]
        even = ends(pipeline, around, of_stages[_FORWARD], of_stages[_BACKWARD], parts).max()
    else:
        even = of_stages.sum(axis=0).max()
    work = block.work.sum(axis=(0, 2))
    return block.lengths - even * work / work.mean()


def _look(job: Job, at: float) -> _Truth:
    """Make some steps of the job as it is at a time, and look at them."""
    going = tuple(fault for fault in job.faults if not isinstance(fault, (Hang, Death)))
    plain = replace(job, faults=going, compile=0, warmup=0, pauses=(), epochs=None, end=float("inf"))
    maker = Maker(plain, job.ranks, at, job.seed)
    block = maker.make(at, np.zeros(job.ranks), _STEPS)
    work, wait, length = block.work, block.waits, block.lengths
    beyond = wait - wait.min(axis=1, keepdims=True)
    size = length.mean()
    stages = np.arange(job.ranks) // -(-job.ranks // len(job.stages))
    own = work.sum(axis=0).mean(axis=0)
    usual = np.array([np.median(own[stages == stage]) for stage in stages])
    uneven = beyond.mean(axis=1) if len(job.stages) == 1 else _uneven(plain, at)
    middle, least, most, top = (np.quantile(work, share, axis=1) for share in (0.5, _FEWER, _MORE, 0.99))
    return _Truth(
        step=float(size),
        imbalance=float(np.median(uneven) / size),
        waiting=float(beyond.mean() / size),
        agreement=float((own / usual).max()),
        jitter={
            phase.label: (
                float(np.median(least[row] - middle[row]) / size),
                float(np.median(most[row] - middle[row]) / size),
            )
            for row, phase in enumerate(OWN)
        },
        tail={phase.label: float((top[row] - middle[row]).max() / size) for row, phase in enumerate(OWN)},
        shares={phase.label: float(work[row].mean(axis=0).min() / size) for row, phase in enumerate(OWN)},
    )
