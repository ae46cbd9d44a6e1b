"""One slow rank, or some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Slow, Supply
from lab.evaluation.model.job import Case, Expectation, Loader
from lab.evaluation.scenarios.registry import drawn, scenario
from laggard.shared.phases import Phase


def slow_ranks(draw: Draw, phase: Phase | None, count: int = 1, *, named: str | None = None, **more: Any) -> Case:
    """Return a case in which some ranks become slow."""
    factor = draw.between(1.15, 3.0, evenly=False)
    ranks, begin = draw.some(min(count, max(1, draw.ranks // 4))), draw.begin()
    fields = {name: more.pop(name) for name in ("ramp", "duty", "round", "end") if name in more}
    fault = Slow(begin=begin, ranks=ranks, phase=phase, factor=factor, **fields)
    label = named if named is not None else phase.label if phase is not None else "mixed"
    horizon = begin + draw.patience(factor) + 120 + fields.get("ramp", 0)
    more.setdefault("faults", ())
    more["faults"] = (fault, *more["faults"])
    return Case(
        draw.job(horizon, **more),
        expected=(Expectation("TrainingStraggler", ranks, label, begin, fault.end),),
        near=("TrainingInputBound", "TrainingCommunicationBound", "TrainingStalled"),
        facts={"effect": factor},
    )


@scenario
def slow_data(draw: Draw) -> Case:
    """One rank's data takes longer."""
    return slow_ranks(draw, Phase.DATA)


@scenario
def slow_copies(draw: Draw) -> Case:
    """One rank's copies to the device take longer."""
    return slow_ranks(draw, Phase.H2D)


@scenario
def slow_forward(draw: Draw) -> Case:
    """One rank's forward pass takes longer."""
    return slow_ranks(draw, Phase.FORWARD)


@scenario
def slow_backward(draw: Draw) -> Case:
    """One rank's backward pass takes longer."""
    return slow_ranks(draw, Phase.BACKWARD)


@scenario
def slow_optimizer(draw: Draw) -> Case:
    """One rank's optimizer takes longer, behind the meeting of all."""
    return slow_ranks(draw, Phase.OPTIMIZER)


@scenario
def slow_between(draw: Draw) -> Case:
    """One rank logs between the phases."""
    return slow_ranks(draw, Phase.OTHER)


@scenario
def slow_everything(draw: Draw) -> Case:
    """One rank's device is slow in all that it does."""
    return slow_ranks(draw, None)


@scenario
def slow_several(draw: Draw) -> Case:
    """Up to three ranks are slow alike."""
    return slow_ranks(draw, Phase.FORWARD, 3)


@scenario
def slow_growing(draw: Draw) -> Case:
    """A rank becomes slow little by little, as a device that gets hot."""
    return slow_ranks(draw, Phase.BACKWARD, ramp=240.0)


@scenario
def slow_loader(draw: Draw) -> Case:
    """The workers of one rank deliver too slowly, and its queue is empty."""
    factor, (rank,), begin = draw.between(1.3, 3.0, evenly=False), draw.some(1), draw.begin()
    return Case(
        draw.job(
            begin + draw.patience(factor) + 180,
            loader=Loader(4, share=draw.between(0.3, 0.8)),
            faults=(Supply(begin=begin, ranks=(rank,), factor=factor),),
        ),
        expected=(Expectation("TrainingStraggler", (rank,), "data", begin),),
        near=("TrainingInputBound", "TrainingCommunicationBound"),
        facts={"effect": factor},
    )


@scenario
def slow_in_a_stage(draw: Draw) -> Case:
    """A rank of a pipeline stage is slow, beside a stage that has more to do by design."""
    return slow_ranks(draw, Phase.FORWARD, stages=(1.0, 1.35) if draw.fills(2) else (1.0,))


@scenario
def slow_after_restart(draw: Draw) -> Case:
    """All ranks restart, and one of them is slow from then on."""
    plain = draw.plain
    restart = plain.start + plain.startup + draw.between(120, 300)
    down = draw.between(10, 60)
    factor, (rank,) = draw.between(1.15, 3.0, evenly=False), draw.some(1)
    begin = restart + down + plain.startup + plain.compile
    return Case(
        draw.job(
            begin + draw.patience(factor) + 180,
            restarts=(restart,),
            down=down,
            moves=draw.chance(0.5),
            faults=(Slow(begin=begin, ranks=(rank,), phase=Phase.FORWARD, factor=factor),),
        ),
        expected=(Expectation("TrainingStraggler", (rank,), "forward", begin),),
        allowed=("TrainingRankMissing", "TrainingStalled"),
        near=("TrainingTelemetryDown",),
        facts={"effect": factor},
    )


@scenario
def slow_and_lost_scrapes(draw: Draw) -> Case:
    """A slow rank while one scrape in thirty fails."""
    return slow_ranks(draw, Phase.FORWARD, lost_scrapes=0.033, push=False)


@drawn(10)
def slow_and_scraped_rarely(draw: Draw) -> Case:
    """A rank is slow, and it, or others, are scraped once a minute beside peers that are scraped more often."""
    draw.shorten(4.0)
    case = slow_ranks(draw, Phase.FORWARD, push=False)
    culprits = case.expected[0].culprits
    others = [rank for rank in range(draw.ranks) if rank not in culprits]
    rare = (culprits[0],) if draw.chance(0.5) or draw.pair else tuple(others[: max(1, draw.ranks // 4)])
    # A window of three minutes decides, as for long steps.
    horizon = case.job.horizon + 480
    return replace(case, job=replace(case.job, rare=tuple(map(int, rare)), horizon=horizon))


@scenario
def slow_without_exporter(draw: Draw) -> Case:
    """A slow rank of a job that pushes its metrics and has no node exporter."""
    return slow_ranks(draw, Phase.DATA, push=True, exporter=False)
