"""Ranks that stand still."""

from __future__ import annotations

from typing import Any

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Hang
from lab.evaluation.model.job import Case, Expectation, Pause
from lab.evaluation.scenarios.healthy import well
from lab.evaluation.scenarios.registry import drawn, scenario
from laggard.shared.metrics import RECENT_STEPS
from laggard.shared.phases import Phase


def _hang(
    draw: Draw,
    phase: Phase,
    *,
    named: bool = True,
    stopped: bool = False,
    ras: tuple[str, float] | None = None,
    **changes: Any,
) -> Case:
    (rank,), begin = draw.some(1), draw.begin()
    limit = max(15.0, 10 * draw.plain.own * (1 + draw.plain.common) / (1 - draw.plain.transfer))
    changes.setdefault("push", False)
    return Case(
        draw.job(
            begin + draw.plain.own + 1.6 * limit + 300,
            faults=(Hang(begin=begin, ranks=(rank,), phase=phase, stopped=stopped, ras=ras),),
            pauses=(),
            **changes,
        ),
        expected=(
            Expectation("TrainingStalled", (rank,) if named else (), phase.label if named else "", begin),
            *((Expectation("TrainingRankFrozen", (rank,), phase.label, begin),) if stopped else ()),
        ),
        # With long steps a rank may be silent for the limit while the others are still on their way to it.
        allowed=("TrainingRankFrozen",),
        # No TrainingStraggler: a run that stands still has no step to be late in, but what was slow before is said a
        # little longer.
        near=("TrainingRankMissing", "TrainingCommunicationBound", "TrainingRankDied")
        if stopped
        else ("TrainingRankMissing", "TrainingTelemetryDown", "TrainingCommunicationBound", "TrainingRankDied"),
        facts={"limit": limit},
    )


@scenario
def hang_in_data(draw: Draw) -> Case:
    """A rank never gets its batch."""
    return _hang(draw, Phase.DATA)


@scenario
def hang_in_forward(draw: Draw) -> Case:
    """A rank stays in its forward pass."""
    return _hang(draw, Phase.FORWARD)


@scenario
def hang_in_backward(draw: Draw) -> Case:
    """A rank stays in its backward pass."""
    return _hang(draw, Phase.BACKWARD)


@scenario
def hang_stopped(draw: Draw) -> Case:
    """A rank's process is stopped."""
    return _hang(draw, Phase.FORWARD, stopped=True)


@drawn(9)
def hang_stopped_elsewhere(draw: Draw) -> Case:
    """A rank's process is stopped in one phase or another."""
    return _hang(draw, (Phase.DATA, Phase.BACKWARD)[draw.random.integers(2)], stopped=True)


@scenario
def hang_of_all(draw: Draw) -> Case:
    """The collective itself does not end: no rank is to blame."""
    return _hang(draw, Phase.COMMUNICATION, named=False)


@drawn(9)
def hang_known_to_ras(draw: Draw) -> Case:
    """The collective does not end, and by NCCL's RAS service a rank has issued fewer, or stopped answering."""
    ras = (("ras_behind", 2), ("ras_missing", 1))[draw.random.integers(2)]
    return _hang(draw, Phase.COMMUNICATION, ras=ras)


@drawn(9)
def hang_unknown_to_ras(draw: Draw) -> Case:
    """The collective does not end, and NCCL's RAS service had given a rank up before: it is not to blame."""
    return _hang(draw, Phase.COMMUNICATION, named=False, ras=("ras_missing", 2))


@scenario
def hang_unseen(draw: Draw) -> Case:
    """A rank hangs where no node exporter tells."""
    case = _hang(draw, Phase.FORWARD, named=False, exporter=False)
    limit = max(600.0, case.facts["limit"])
    job = draw.job(case.job.horizon + limit + 400, faults=case.job.faults, pauses=(), exporter=False, push=False)
    return Case(job, case.expected, near=("TrainingRankMissing", "TrainingTelemetryDown"), facts={"limit": limit})


@scenario
def short_pause(draw: Draw) -> Case:
    """A rank stands still for less than the limit, now and then."""
    draw.shorten(20.0)
    begin, own = draw.begin(), draw.plain.own
    limit = max(15.0, 10 * own)
    faults = tuple(
        Hang(begin=begin + number * (5 * limit + 60), end=begin + number * (5 * limit + 60) + 0.7 * limit,
             ranks=draw.some(1), phase=Phase.DATA)
        for number in range(3)
    )  # fmt: skip
    # Two such steps in the newest hundred or two are what a long tail is.
    allowed = ("TrainingLongTail",) if 5 * limit + 60 < RECENT_STEPS * own else ()
    job = draw.job(begin + 3 * (5 * limit + 60), faults=faults, pauses=())
    return Case(job, near=("TrainingStalled", "TrainingRankMissing", "TrainingRankFrozen"), allowed=allowed)


@scenario
def long_checkpoint(draw: Draw) -> Case:
    """A checkpoint takes minutes."""
    pauses = (Pause(Phase.CHECKPOINT, draw.between(250, 400), draw.between(60, 400), draw.chance(0.5)),)
    return well(draw, near=("TrainingStalled", "TrainingStraggler", "TrainingCommunicationBound"), pauses=pauses)


@scenario
def slow_start(draw: Draw) -> Case:
    """The start and the first step take minutes."""
    return well(
        draw,
        near=("TrainingStalled", "TrainingRankMissing", "TrainingTelemetryDown"),
        startup=draw.between(120, 500),
        compile=draw.between(30, 90),
    )
