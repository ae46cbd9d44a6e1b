"""Kinds of imbalance: a host, a stage, batches of uneven size."""

from __future__ import annotations

from dataclasses import replace

from lab.evaluation.draw import Draw, unsteady_patience
from lab.evaluation.model.faults import Roaming, Slow
from lab.evaluation.model.job import Case, Expectation
from lab.evaluation.scenarios.registry import drawn
from laggard.shared.phases import Phase

_PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OTHER, None)
#: Ranks of a usual host. A job that would fit into one has several that are smaller.
_PER_HOST = 8


def _hosts(draw: Draw, per_host: int) -> tuple[int, tuple[int, ...], str]:
    """Return how many ranks a host has, those of a host that is drawn, and its name."""
    per_host = min(per_host, draw.ranks // 2)
    first = int(draw.random.integers(draw.ranks // per_host)) * per_host
    return per_host, tuple(range(first, first + per_host)), f"{draw.name}-node-{first // per_host}"


@drawn(11, least=4)
def slow_host(draw: Draw) -> Case:
    """All ranks of a host become slow."""
    per_host, ranks, host = _hosts(draw, 2 if draw.ranks <= _PER_HOST else _PER_HOST)
    factor, begin = draw.between(1.3, 2.5, evenly=False), draw.begin()
    phase = _PHASES[draw.random.integers(len(_PHASES))]
    slow = Slow(begin=begin, ranks=ranks, phase=phase, factor=factor)
    return Case(
        draw.job(begin + draw.patience(factor) + 180, faults=(slow,), per_host=per_host),
        expected=(Expectation("TrainingNodeSlow", (host,), begin=begin),),
        allowed=("TrainingStraggler",),
        near=("TrainingStageSlow", "TrainingDataImbalance", "TrainingContention"),
        facts={"effect": factor},
    )


@drawn(6, least=4)
def hardly_slow_host(draw: Draw) -> Case:
    """All ranks of a host are slower by up to 9 %."""
    per_host, ranks, _ = _hosts(draw, 2 if draw.ranks <= _PER_HOST else _PER_HOST)
    factor, begin = draw.between(1.02, 1.09), draw.begin()
    slow = Slow(begin=begin, ranks=ranks, phase=Phase.FORWARD, factor=factor)
    job = draw.job(begin + draw.patience(factor) + 300, faults=(slow,), per_host=per_host)
    return Case(job, near=("TrainingNodeSlow", "TrainingStraggler"))


@drawn(6, least=8)
def half_a_slow_host(draw: Draw) -> Case:
    """Half of the ranks of a host become slow, which makes no slow host."""
    per_host, ranks, _ = _hosts(draw, 4 if draw.ranks == _PER_HOST else _PER_HOST)
    ranks = ranks[: per_host // 2]
    factor, begin = draw.between(1.35, 2.0), draw.begin()
    slow = Slow(begin=begin, ranks=ranks, phase=Phase.FORWARD, factor=factor)
    return Case(
        draw.job(begin + draw.patience(factor) + 180, faults=(slow,), per_host=per_host),
        expected=(Expectation("TrainingStraggler", ranks, "forward", begin),),
        near=("TrainingNodeSlow",),
        facts={"effect": factor},
    )


def _staged(draw: Draw, factor: float) -> tuple[float, ...]:
    stages = [1.0] * (4 if draw.fills(4) and draw.chance(0.5) else 2)
    stages[draw.random.integers(len(stages))] = factor
    return tuple(stages)


@drawn(11, least=4)
def slow_stage(draw: Draw) -> Case:
    """One pipeline stage has more to do."""
    factor = draw.between(1.3, 1.9)
    stages = _staged(draw, factor)
    begin = draw.plain.start + draw.plain.startup + draw.plain.compile
    return Case(
        draw.job(begin + draw.patience(factor) + 300, stages=stages),
        expected=(Expectation("TrainingStageSlow", (f"stage-{stages.index(factor)}",), begin=begin),),
        near=("TrainingStraggler", "TrainingNodeSlow", "TrainingDataImbalance"),
        facts={"effect": factor},
    )


@drawn(10, least=4)
def nearly_even_stages(draw: Draw) -> Case:
    """One pipeline stage has a little more to do."""
    stages = _staged(draw, draw.between(1.03, 1.14))
    return Case(
        draw.job(draw.begin() + draw.patience() + 600, stages=stages), near=("TrainingStageSlow", "TrainingStraggler")
    )


@drawn(10, least=4)
def uneven_batches(draw: Draw) -> Case:
    """In each step another rank has much more to do: what follows of that says what must fire."""
    draw.calm(0.1)
    draw.shorten(1.0)
    factor, begin = draw.between(1.4, 2.6), draw.begin()
    step = draw.plain.own * factor
    job = draw.job(
        begin + unsteady_patience(step / (1 - draw.plain.transfer)) + 300 * step + 300,
        faults=(Roaming(begin=begin, factor=factor),),
    )
    return Case(
        job, near=("TrainingStraggler", "TrainingNetworkBursty", "TrainingContention"), facts={"effect": factor}
    )


@drawn(12, least=4)
def nearly_even_batches(draw: Draw) -> Case:
    """In each step another rank has a little more to do."""
    draw.calm(0.02)
    draw.shorten(2.0)
    draw.plain = replace(draw.plain, spread=0.005)
    factor, begin = draw.between(1.03, 1.12), draw.begin()
    job = draw.job(begin + draw.patience() + 300 * draw.plain.own + 300, faults=(Roaming(begin=begin, factor=factor),))
    return Case(job, near=("TrainingDataImbalance", "TrainingStraggler"))
