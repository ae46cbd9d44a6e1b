"""Several faults at once."""

from __future__ import annotations

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Hang, MetricsLost, Slow
from lab.evaluation.model.job import Case, Expectation
from lab.evaluation.scenarios.bound import long_transfer
from lab.evaluation.scenarios.registry import scenario
from lab.evaluation.scenarios.stragglers import slow_ranks
from laggard.shared.phases import Phase

#: A transfer of a larger share must be told: the rule's limit stands for 0.23 at most. See rules/thresholds.yml.
_SURE = 0.25


@scenario
def slow_and_communication_bound(draw: Draw) -> Case:
    """The transfer takes long, and one rank is slow as well."""
    (rank,), factor = draw.some(1), draw.between(1.3, 1.8)
    slow = Slow(begin=draw.begin(), ranks=(rank,), phase=Phase.FORWARD, factor=factor)
    case = long_transfer(draw, slow=factor, faults=(slow,))
    named = Expectation("TrainingStraggler", (rank,), "forward", max(fault.begin for fault in case.job.faults))
    # The slow rank's own time is part of the step: the share is that of the longer step.
    share = 1 - 1 / case.facts["effect"]
    ratio = share / (1 - share)
    expected = (named, *case.expected) if ratio / (ratio + factor) > _SURE else (named,)
    return Case(
        case.job,
        expected,
        ("TrainingCommunicationBound",),
        ("TrainingInputBound", "TrainingStalled"),
        {"effect": factor},
    )


@scenario
def slow_then_hang(draw: Draw) -> Case:
    """A rank is slow for a while, and then another one hangs."""
    draw.shorten(3.0)
    factor, ranks, begin = draw.between(1.3, 2.5), draw.some(2), draw.begin()
    slow, stuck = ranks[0], ranks[-1]
    hang = begin + draw.patience(factor) + 60
    limit = max(15.0, 10 * draw.plain.own * factor)
    faults = (
        Slow(begin=begin, end=hang, ranks=(slow,), phase=Phase.FORWARD, factor=factor),
        Hang(begin=hang, ranks=(stuck,), phase=Phase.DATA),
    )
    return Case(
        draw.job(hang + 1.6 * limit + 300, faults=faults, pauses=(), push=False),
        expected=(
            Expectation("TrainingStraggler", (slow,), "forward", begin, hang),
            Expectation("TrainingStalled", (stuck,), "data", hang),
        ),
        allowed=("TrainingRankFrozen",),
        near=("TrainingRankMissing", "TrainingInputBound"),
        facts={"limit": limit, "effect": factor},
    )


@scenario
def slow_and_metrics_lost(draw: Draw) -> Case:
    """A rank is slow, and the metrics of another do not arrive."""
    ranks = draw.some(2)
    begin = draw.begin()
    case = slow_ranks(draw, Phase.FORWARD)
    slow = case.job.of(Slow)[0].ranks
    lost = tuple(rank for rank in ranks if rank not in slow)[:1] or ((slow[0] + 1) % draw.ranks,)
    job = draw.job(
        max(case.job.horizon, begin + 420), faults=(*case.job.faults, MetricsLost(begin=begin, ranks=lost)), push=False
    )
    # Of two ranks only one is left, which has no peer to be compared with.
    expected = () if draw.pair else case.expected
    allowed = ("TrainingStraggler",) if draw.pair else ()
    return Case(
        job,
        (*expected, Expectation("TrainingTelemetryDown", lost, begin=begin)),
        allowed,
        ("TrainingRankMissing",),
        case.facts,
    )
