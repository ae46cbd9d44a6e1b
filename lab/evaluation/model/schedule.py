"""Pipelines: when each rank is done with its micro-batches, by the order in which its stage takes them.

One forward, one backward (1F1B) and, with several chunks of the model on each rank, the interleaved order of
Megatron-LM (Narayanan et al., 2021, arXiv:2104.04473). A pass begins once its rank is free and the pass that it depends
on has ended on the neighbour; what a rank waits between its passes is its bubble. Of p stages with v chunks, all alike,
and m micro-batches the bubble comes to (p - 1) / (v m + p - 1) of the time, and to more where they are not alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Pipeline:
    """How the batch of a step goes through the stages."""

    micro_batches: int = 8
    #: Parts of the model on each rank, which take turns. More than one needs a multiple of the stages of micro-batches.
    chunks: int = 1
    #: How the micro-batches of a step differ in length, as a share of the usual one.
    variation: float = 0.0


@dataclass(frozen=True)
class Pass:
    """A forward or a backward of one micro-batch through one chunk of a stage."""

    backward: bool
    micro_batch: int
    chunk: int
    stage: int


def ends(
    pipeline: Pipeline,
    ready: NDArray[np.float64],
    forward: NDArray[np.float64],
    backward: NDArray[np.float64],
    parts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return when each rank has ended its last pass, as stage by step by replica.

    Args:
        pipeline: how many micro-batches and chunks.
        ready: when each rank may begin, as stage by step by replica.
        forward: seconds of all forwards of each rank, in the same order.
        backward: those of all backwards.
        parts: share of each micro-batch in them, as micro-batch by step by replica. They add up to one.
    """
    free = list(ready)
    ended: dict[Pass, NDArray[np.float64]] = {}
    for each, after in order(pipeline, len(ready)):
        begin = free[each.stage] if after is None else np.maximum(free[each.stage], ended[after])
        seconds = (backward if each.backward else forward)[each.stage] * parts[each.micro_batch] / pipeline.chunks
        free[each.stage] = ended[each] = begin + seconds
    return np.array(free)


@cache
def order(pipeline: Pipeline, stages: int) -> tuple[tuple[Pass, Pass | None], ...]:
    """Return the passes of all stages, each with the one that it waits for and behind it.

    Raises:
        ValueError: chunks take turns only where the stages divide the micro-batches.
    """
    if pipeline.chunks > 1 and pipeline.micro_batches % stages:
        raise ValueError(f"micro-batches must be a multiple of the {stages} stages, got {pipeline.micro_batches}")
    left = [_passes(pipeline, stages, stage) for stage in range(stages)]
    done: dict[Pass, Pass | None] = {}
    while any(left):
        for passes in left:
            while passes and ((after := _after(pipeline, stages, passes[0])) is None or after in done):
                done[passes.pop(0)] = after
    return tuple(done.items())


def _passes(pipeline: Pipeline, stages: int, stage: int) -> list[Pass]:
    """Return the passes of a stage in their order: forwards to fill the pipeline, then one of each, then backwards."""
    count, chunks = pipeline.micro_batches, pipeline.chunks
    if chunks == 1:
        turns = [(number, 0) for number in range(count)]
        filling = stages - stage - 1
    else:
        # As many micro-batches as there are stages go through a chunk before the next one's turn.
        turns = [
            (first + number, chunk)
            for first in range(0, count, stages)
            for chunk in range(chunks)
            for number in range(stages)
        ]
        filling = 2 * (stages - stage - 1) + (chunks - 1) * stages
    filling = min(filling, len(turns))
    forwards = [Pass(False, number, chunk, stage) for number, chunk in turns]
    backwards = [Pass(True, number, chunks - 1 - chunk, stage) for number, chunk in turns]
    steady = [each for pair in zip(forwards[filling:], backwards, strict=False) for each in pair]
    return [*forwards[:filling], *steady, *backwards[len(turns) - filling :]]


def _after(pipeline: Pipeline, stages: int, each: Pass) -> Pass | None:
    """Return the pass whose result a pass needs from another rank; none for the first forward of a micro-batch."""
    last, step = stages - 1, -1 if each.backward else 1
    stage, chunk = each.stage - step, each.chunk
    if 0 <= stage <= last:
        return Pass(each.backward, each.micro_batch, chunk, stage)
    # The chunks follow one another round the ranks.
    chunk -= step
    if 0 <= chunk < pipeline.chunks:
        return Pass(each.backward, each.micro_batch, chunk, last if step > 0 else 0)
    if each.backward:
        return Pass(False, each.micro_batch, each.chunk, each.stage)
    return None
