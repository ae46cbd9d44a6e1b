"""Metrics and exporters that go silent."""

from __future__ import annotations

from dataclasses import replace

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Dropped, ExporterLost, MetricsLost, WrongClock
from lab.evaluation.model.job import Case, Expectation
from lab.evaluation.scenarios.registry import drawn, scenario


@scenario
def metrics_lost(draw: Draw) -> Case:
    """The metrics of a rank do not arrive any more."""
    (rank,), begin = draw.some(1), draw.begin()
    return Case(
        draw.job(begin + 420, faults=(MetricsLost(begin=begin, ranks=(rank,)),)),
        expected=(Expectation("TrainingTelemetryDown", (rank,), "", begin),),
        near=("TrainingRankMissing", "TrainingStalled"),
    )


@scenario
def metrics_lost_several(draw: Draw) -> Case:
    """The metrics of some ranks do not arrive any more."""
    ranks, begin = draw.some(4), draw.begin()
    return Case(
        draw.job(begin + 420, faults=(MetricsLost(begin=begin, ranks=ranks),)),
        expected=(Expectation("TrainingTelemetryDown", ranks, "", begin),),
        near=("TrainingRankMissing", "TrainingStalled", "TrainingStraggler"),
    )


@scenario
def exporter_lost(draw: Draw) -> Case:
    """A node exporter does not answer any more."""
    host = int(draw.random.integers(-(-draw.ranks // draw.plain.per_host))) * draw.plain.per_host
    ranks, begin = tuple(range(host, min(host + draw.plain.per_host, draw.ranks))), draw.begin()
    return Case(
        draw.job(begin + 480, faults=(ExporterLost(begin=begin, ranks=ranks),)),
        expected=(Expectation("TrainingTelemetryDown", ranks, "", begin),),
        near=("TrainingRankMissing", "TrainingStalled"),
    )


@scenario
def short_gap(draw: Draw) -> Case:
    """Metrics of some ranks are gone for a minute and a half, and later those of an exporter."""
    begin, ranks = draw.begin(), draw.some(4)
    faults = (
        MetricsLost(begin=begin, end=begin + 90, ranks=ranks),
        ExporterLost(begin=begin + 240, end=begin + 330, ranks=tuple(range(min(8, draw.ranks)))),
    )
    return Case(
        draw.job(begin + 600, faults=faults), near=("TrainingTelemetryDown", "TrainingRankMissing", "TrainingStalled")
    )


def _sparse(draw: Draw, every: int) -> Case:
    """Return a case in which the metrics of all ranks are scraped more rarely than the rules expect."""
    draw.shorten(2.0)
    job = draw.job(draw.begin() + 900, rare=tuple(range(draw.ranks)), rare_every=every, push=False)
    return Case(job, near=("TrainingStraggler", "TrainingStalled", "TrainingTelemetryDown"))


@drawn(20)
def scraped_each_minute(draw: Draw) -> Case:
    """As Prometheus does where nobody says otherwise."""
    return replace(_sparse(draw, 4), expected=(Expectation("TrainingScrapesSparse"),))


@drawn(11)
def scraped_twice_a_minute(draw: Draw) -> Case:
    """Half as often as the rules expect, which is enough."""
    case = _sparse(draw, 2)
    return replace(case, near=(*case.near, "TrainingScrapesSparse"))


def _doubtful(draw: Draw, *, real: bool) -> Case:
    """Return a case in which events are dropped, or the clock of a host is wrong, or nearly."""
    draw.shorten(2.0)
    begin, (rank,) = draw.begin(), draw.some(1)
    job = draw.job(begin + 1300, push=False, pauses=())
    rate = draw.between(0.2, 3, evenly=False) if real else draw.between(0.02, 0.08)
    seconds = draw.between(130, 900, evenly=False) if real else draw.between(3, 45)
    seconds *= -1 if draw.chance(0.5) else 1
    which = draw.random.integers(3)
    host = rank // job.per_host * job.per_host
    on_host = tuple(range(host, min(host + job.per_host, draw.ranks)))
    faults = (Dropped(begin=begin, ranks=(rank,), rate=rate), WrongClock(begin=begin, ranks=on_host, seconds=seconds))
    expected = (
        Expectation("TrainingTelemetryDropped", (rank,), "", begin),
        Expectation("TrainingClockSkew", (job.host(rank),), "", begin),
    )
    # One of them alone, or both.
    if real and which < len(faults):
        faults, expected = (faults[which],), (expected[which],)
    near = tuple({"TrainingTelemetryDropped", "TrainingClockSkew"} - {each.alert for each in expected if real})
    return Case(replace(job, faults=faults), expected if real else (), near=(*near, "TrainingTelemetryDown"))


@drawn(20)
def doubtful(draw: Draw) -> Case:
    """A rank drops many events, or the clock of a host is wrong."""
    return _doubtful(draw, real=True)


@drawn(11)
def hardly_doubtful(draw: Draw) -> Case:
    """A rank drops some events, and the clock of a host is wrong by seconds."""
    return _doubtful(draw, real=False)
