"""Runs that end, restart, or lose ranks."""

from __future__ import annotations

from typing import Any

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Death
from lab.evaluation.model.job import Case, Expectation, Job
from lab.evaluation.scenarios.registry import drawn, scenario


def _ends(draw: Draw, **changes: Any) -> Case:
    end = draw.begin() + draw.between(30, 200)
    return Case(
        draw.job(end + 30 * draw.plain.own + 420, end=end, apart=draw.between(5, 60), pauses=(), **changes),
        near=(
            "TrainingStalled",
            "TrainingRankMissing",
            "TrainingTelemetryDown",
            "TrainingStraggler",
            "TrainingRankDied",
            "TrainingRunFailed",
            "TrainingRankFrozen",
            "TrainingRestartLoop",
        ),
    )


@scenario
def ends_pulled(draw: Draw) -> Case:
    """A run ends, its ranks up to a minute apart, each scraped."""
    return _ends(draw, push=False)


@scenario
def ends_pushed(draw: Draw) -> Case:
    """A run ends, its ranks up to a minute apart, each pushing."""
    return _ends(draw, push=True)


@scenario
def ends_unseen(draw: Draw) -> Case:
    """A run ends that no node exporter sees."""
    return _ends(draw, push=draw.chance(0.5), exporter=False)


def _death(draw: Draw, ranks: tuple[int, ...], *, with_host: bool = False) -> Case:
    begin = draw.begin()
    limit = max(15.0, 10 * draw.plain.own * (1 + draw.plain.common) / (1 - draw.plain.transfer))
    expected: tuple[Expectation, ...] = (Expectation("TrainingRankMissing", ranks, begin=begin),)
    if not with_host:
        expected += (
            Expectation("TrainingStalled", ranks, begin=begin),
            Expectation("TrainingRankDied", ranks, begin=begin),
        )
    return Case(
        draw.job(
            begin + draw.plain.own + 1.6 * limit + 300,
            faults=(Death(begin=begin, ranks=ranks, with_host=with_host),),
            pauses=(),
            push=False,
        ),
        expected=expected,
        # Where the host is gone, nobody is left to say which rank the others wait for.
        allowed=("TrainingStalled",) if with_host else (),
        near=("TrainingTelemetryDown", "TrainingCommunicationBound", "TrainingRunFailed", "TrainingRankFrozen"),
        facts={"limit": limit},
    )


@scenario
def killed(draw: Draw) -> Case:
    """A rank's process is killed, and the others wait."""
    return _death(draw, draw.some(1))


@scenario
def killed_several(draw: Draw) -> Case:
    """Up to three processes are killed at once."""
    return _death(draw, draw.some(min(3, max(1, draw.ranks // 2))))


@scenario
def host_gone(draw: Draw) -> Case:
    """A host is gone with all of its ranks."""
    if draw.ranks <= draw.plain.per_host:
        return _death(draw, draw.some(1), with_host=True)
    first = int(draw.random.integers(draw.ranks // draw.plain.per_host)) * draw.plain.per_host
    return _death(draw, tuple(range(first, first + draw.plain.per_host)), with_host=True)


def _whole(draw: Draw, begin: float, by: str, word: str) -> Job:
    """A rank ends, and within seconds its launcher asks the others to end too."""
    first = draw.some(1)
    asked = begin + draw.between(0.5, 8)
    others = tuple(rank for rank in range(draw.ranks) if rank not in first)
    deaths = (Death(begin=begin, ranks=first, by=by, word=word), Death(begin=asked, ranks=others, by="request"))
    return draw.job(begin + 400, faults=deaths, pauses=())


@drawn(11)
def failed(draw: Draw) -> Case:
    """A rank ends by itself, in any way, and its launcher ends the others."""
    begin = draw.begin()
    ways = (("unknown", ""), ("exception", "ValueError"), ("exit", "3"))
    job = _whole(draw, begin, *ways[draw.random.integers(len(ways))])
    (first,) = job.of(Death)[0].ranks
    return Case(
        job,
        expected=(Expectation("TrainingRunFailed", (first,), begin=begin),),
        near=("TrainingStalled", "TrainingRankMissing", "TrainingRankFrozen", "TrainingTelemetryDown"),
    )


@drawn(11)
def cancelled(draw: Draw) -> Case:
    """Somebody asks all ranks to end, within seconds of each other."""
    job = _whole(draw, draw.begin(), "request", "SIGTERM")
    return Case(
        job,
        near=(
            "TrainingRunFailed",
            "TrainingStalled",
            "TrainingRankMissing",
            "TrainingRankDied",
            "TrainingRankFrozen",
            "TrainingTelemetryDown",
        ),
    )


@scenario
def restart(draw: Draw) -> Case:
    """All ranks restart, on the same hosts or on others."""
    at = draw.begin()
    return Case(
        draw.job(
            at + draw.patience() + 400,
            restarts=(at,),
            down=draw.between(2, 20),
            moves=draw.chance(0.5),
            pauses=(),
        ),
        near=(
            "TrainingStalled",
            "TrainingRankMissing",
            "TrainingTelemetryDown",
            "TrainingStraggler",
            "TrainingRankDied",
            "TrainingRankFrozen",
            "TrainingRestartLoop",
            "TrainingRankClash",
        ),
    )


@scenario
def restart_smaller(draw: Draw) -> Case:
    """All ranks restart, and a quarter of them is left out."""
    at = draw.begin()
    return Case(
        draw.job(
            at + draw.patience() + 400,
            restarts=(at,),
            down=draw.between(2, 20),
            ranks_after=max(1, draw.ranks - max(1, draw.ranks // 4)),
            pauses=(),
            push=False,
        ),
        near=("TrainingRankMissing", "TrainingStalled", "TrainingTelemetryDown"),
    )
