"""Pipelines with their bubbles: healthy ones, slow stages, slow ranks, and batches of uneven size."""

from __future__ import annotations

from lab.evaluation.draw import Draw, unsteady_patience
from lab.evaluation.model.faults import Roaming, Slow
from lab.evaluation.model.job import Case, Expectation
from lab.evaluation.model.schedule import Pipeline
from lab.evaluation.scenarios.registry import drawn
from laggard.shared.phases import Phase

_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OTHER, None)


def _schedule(draw: Draw, *, least: int = 2, noise: float = 0.1) -> tuple[int, Pipeline]:
    """Draw how many stages there are and how micro-batches go through them.

    Args:
        draw: what else is drawn.
        least: ranks of a stage.
        noise: limit of what steps differ by beside.
    """
    draw.calm(noise)
    stages = [each for each in (2, 4, 8) if draw.ranks % each == 0 and draw.ranks // each >= least]
    count = int(draw.random.choice(stages))
    # Interleaved where there is more than one chunk.
    chunks = int(draw.random.choice([1, 1, 2, 4]))
    micro_batches = count * int(draw.random.choice([1, 2, 4]))
    return count, Pipeline(micro_batches, chunks, draw.between(0, noise))


def _longer(count: int, pipeline: Pipeline, slow: float = 1.0) -> float:
    """Return how many times its own time a step of such stages takes at most."""
    return slow * (1 + (count - 1) / (pipeline.chunks * pipeline.micro_batches))


def _one(draw: Draw, count: int, factor: float) -> tuple[float, ...]:
    stages = [1.0] * count
    stages[draw.random.integers(count)] = factor
    return tuple(stages)


@drawn(12, least=4)
def bubbles(draw: Draw) -> Case:
    """All stages have as much to do, and each waits for the others for up to half of the step."""
    draw.shorten(10.0)
    count, pipeline = _schedule(draw)
    horizon = draw.begin() + max(900.0, draw.patience(_longer(count, pipeline))) + 256 * 2 * draw.plain.own + 600
    return Case(
        draw.job(horizon, stages=(1.0,) * count, pipeline=pipeline),
        near=(
            "TrainingCommunicationBound",
            "TrainingStageSlow",
            "TrainingStraggler",
            "TrainingDataImbalance",
            "TrainingNetworkBursty",
            "TrainingNodeSlow",
        ),
        facts={"bubble": 1 - 1 / _longer(count, pipeline)},
    )


@drawn(10, least=4)
def bubbles_of_nearly_even_stages(draw: Draw) -> Case:
    """One stage has a little more to do."""
    draw.shorten(10.0)
    count, pipeline = _schedule(draw)
    horizon = draw.begin() + max(900.0, draw.patience(_longer(count, pipeline))) + 256 * 2 * draw.plain.own + 600
    return Case(
        draw.job(horizon, stages=_one(draw, count, draw.between(1.03, 1.14)), pipeline=pipeline),
        near=(
            "TrainingCommunicationBound",
            "TrainingStageSlow",
            "TrainingStraggler",
            "TrainingDataImbalance",
            "TrainingNetworkBursty",
        ),
    )


@drawn(12, least=4)
def slow_stage_of_a_pipeline(draw: Draw) -> Case:
    """One stage has more to do."""
    draw.shorten(10.0)
    count, pipeline = _schedule(draw)
    factor = draw.between(1.3, 1.9)
    stages = _one(draw, count, factor)
    begin = draw.plain.start + draw.plain.startup + draw.plain.compile
    horizon = begin + max(900.0, draw.patience(_longer(count, pipeline, factor))) + 256 * 2 * draw.plain.own + 300
    return Case(
        draw.job(horizon, stages=stages, pipeline=pipeline),
        expected=(Expectation("TrainingStageSlow", (f"stage-{stages.index(factor)}",), begin=begin),),
        near=("TrainingCommunicationBound", "TrainingStraggler", "TrainingDataImbalance", "TrainingNetworkBursty"),
        facts={"effect": factor},
    )


def _uneven(draw: Draw, low: float, high: float, slow: float = 1.0, *, near: tuple[str, ...] = ()) -> Case:
    """Return a case in which another replica has a longer batch in each step, through all of its stages."""
    # Of two replicas each has the longer batch in every other step: its usual wait is now one and now the other.
    count, pipeline = _schedule(draw, least=4, noise=0.05)
    # Steps as long as those of uneven batches without a pipeline.
    draw.shorten(1.0 / _longer(count, pipeline, slow))
    factor, begin = draw.between(low, high), draw.begin()
    step = draw.plain.own * factor * _longer(count, pipeline, slow) / (1 - draw.plain.transfer)
    stages = _one(draw, count, slow)
    expected = (
        (Expectation("TrainingStageSlow", (f"stage-{stages.index(slow)}",), begin=draw.plain.start),)
        if slow > 1
        else ()
    )
    job = draw.job(
        begin + unsteady_patience(step) + 300 * step + 300,
        stages=stages,
        pipeline=pipeline,
        faults=(Roaming(begin=begin, factor=factor),),
    )
    near = ("TrainingCommunicationBound", "TrainingStraggler", "TrainingNetworkBursty", "TrainingContention", *near)
    return Case(job, expected, near=near, facts={"effect": factor})


@drawn(12, least=8)
def uneven_batches_of_a_pipeline(draw: Draw) -> Case:
    """In each step another replica has much more to do: what follows of that says what must fire."""
    return _uneven(draw, 1.5, 2.6, near=("TrainingStageSlow",))


@drawn(12, least=8)
def uneven_batches_beside_a_slow_stage(draw: Draw) -> Case:
    """In each step another replica has much more to do, and one stage has more than the others in all steps."""
    return _uneven(draw, 1.5, 2.6, slow=draw.between(1.3, 1.7))


@drawn(10, least=8)
def nearly_even_batches_of_a_pipeline(draw: Draw) -> Case:
    """In each step another replica has a little more to do."""
    return _uneven(draw, 1.03, 1.1, near=("TrainingDataImbalance", "TrainingStageSlow", "TrainingJitter"))


@drawn(10, least=4)
def slow_rank_of_a_pipeline(draw: Draw) -> Case:
    """A rank of a stage is slow, and its replica with it."""
    draw.shorten(3.0)
    count, pipeline = _schedule(draw)
    factor, (rank,), begin = draw.between(1.3, 2.5, evenly=False), draw.some(1), draw.begin()
    phase = _PHASES[draw.random.integers(len(_PHASES))]
    return Case(
        draw.job(
            begin + draw.patience(_longer(count, pipeline, factor)) + 240,
            stages=(1.0,) * count,
            pipeline=pipeline,
            faults=(Slow(begin=begin, ranks=(rank,), phase=phase, factor=factor),),
        ),
        expected=(Expectation("TrainingStraggler", (rank,), "mixed" if phase is None else phase.label, begin),),
        near=("TrainingCommunicationBound", "TrainingStageSlow", "TrainingNodeSlow", "TrainingDataImbalance"),
        facts={"effect": factor},
    )
