"""Runs in which no rank is slow, or hardly."""

from __future__ import annotations

from typing import Any

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Roaming, Slow
from lab.evaluation.model.job import Case, Loader, Pause
from lab.evaluation.scenarios.registry import drawn, scenario
from laggard.shared.phases import Phase

#: Extra work roams where each rank has it in an eighth of the steps at most.
_ROAMING_RANKS = 8
#: What nobody must be told where all is well.
_CORE = (
    "TrainingStraggler",
    "TrainingStalled",
    "TrainingRankMissing",
    "TrainingInputBound",
    "TrainingCommunicationBound",
    "TrainingTelemetryDown",
)


def well(draw: Draw, *, near: tuple[str, ...] = _CORE, minutes: float = 8, **changes: Any) -> Case:
    """Return a case of which nothing must be said."""
    return Case(draw.job(draw.begin() + draw.patience() + 60 * minutes, **changes), near=near)


@scenario
def healthy(draw: Draw) -> Case:
    """Nothing is wrong."""
    return well(draw)


@scenario
def healthy_noisy(draw: Draw) -> Case:
    """Steps vary by 20 %, and ranks by 2 %."""
    return well(draw, cv=0.2, spread=0.02, wander=0.02)


@scenario
def healthy_pauses(draw: Draw) -> Case:
    """Checkpoints of one rank alone and evaluations of all come often."""
    pauses = (
        Pause(Phase.CHECKPOINT, draw.between(120, 240), draw.between(10, 60), alone=True),
        Pause(Phase.EVALUATION, draw.between(180, 400), draw.between(10, 90)),
    )
    return well(draw, pauses=pauses)


@scenario
def healthy_loader(draw: Draw) -> Case:
    """Workers deliver just in time."""
    return well(draw, near=("TrainingInputBound", "TrainingStraggler"), loader=Loader(4, share=draw.between(0.6, 0.85)))


@scenario
def healthy_lost_scrapes(draw: Draw) -> Case:
    """One scrape in thirty fails."""
    return well(draw, lost_scrapes=0.033, push=False)


@drawn(10)
def healthy_scraped_rarely(draw: Draw) -> Case:
    """Some ranks are scraped once a minute, others four times."""
    rare = draw.some(max(1, draw.ranks // 4))
    return well(draw, push=False, rare=rare, minutes=14)


@scenario
def hardlyslow_ranks(draw: Draw) -> Case:
    """A rank is slower by up to 8 %."""
    factor, begin = draw.between(1.02, 1.08), draw.begin()
    return well(
        draw,
        near=("TrainingStraggler",),
        faults=(Slow(begin=begin, ranks=draw.some(1), phase=Phase.FORWARD, factor=factor),),
    )


@scenario
def one_hiccup(draw: Draw) -> Case:
    """A rank is slow for less than a minute."""
    draw.shorten(2.0)
    begin, length = draw.begin(), draw.between(5, 50)
    factor = draw.between(1.5, 5.0)
    return well(
        draw,
        near=("TrainingStraggler", "TrainingStalled", "TrainingCommunicationBound"),
        faults=(Slow(begin=begin, end=begin + length, ranks=draw.some(1), phase=Phase.DATA, factor=factor),),
    )


@scenario
def roaming(draw: Draw) -> Case:
    """In every step another rank has more to do."""
    return well(
        draw,
        near=("TrainingStraggler", "TrainingCommunicationBound", "TrainingInputBound"),
        cv=min(draw.plain.cv, 0.1),
        faults=(Roaming(factor=draw.between(1.15, 2.0)),) if draw.ranks >= _ROAMING_RANKS else (),
    )


@scenario
def stages_differ(draw: Draw) -> Case:
    """One pipeline stage has more to do by design, and its ranks no peer that has less."""
    stages = (1.0, draw.between(1.2, 1.6)) if draw.fills(2) else (1.0,)
    return well(draw, near=("TrainingStraggler",), stages=stages)


@scenario
def unmeasured(draw: Draw) -> Case:
    """A rank is slow, but no rank can measure its waits."""
    return well(
        draw,
        near=("TrainingStraggler", "TrainingCommunicationBound"),
        measures_communication=False,
        faults=(Slow(begin=draw.begin(), ranks=draw.some(1), phase=Phase.FORWARD, factor=1.5),),
    )
