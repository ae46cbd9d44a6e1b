"""Bubbles come out of the schedule of a pipeline and are not put into it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.evaluation.model.blocks import Array, Maker
from lab.evaluation.model.faults import Roaming
from lab.evaluation.model.job import OWN, TAIL, Job
from lab.evaluation.model.schedule import Pipeline, ends, order
from laggard.shared.phases import Phase

_FORWARD, _BACKWARD = 1.0, 2.0
_STEADY = Job(
    "r", 8, 1.0, cv=0, spread=0, transfer=0, compile=0, warmup=0, stages=(1.0, 1.0), pipeline=Pipeline(8)
)  # fmt: skip

#: Stages, chunks, and micro-batches as a multiple of the stages.
LAYOUTS = list(product((2, 3, 4, 8), (1, 2, 4), (1, 2, 4)))


def _length(pipeline: Pipeline, stages: list[float], parts: list[float] | None = None) -> float:
    """Return how long a step takes whose stages need so many times as long as a plain one."""
    shares = np.array(parts or [1.0] * pipeline.micro_batches)
    work = np.array(stages)[:, None, None]
    found = ends(pipeline, 0 * work, _FORWARD * work, _BACKWARD * work, (shares / shares.sum())[:, None, None])
    return float(found.max())


@pytest.mark.parametrize(("stages", "chunks", "multiple"), LAYOUTS)
def test_the_bubble_is_what_is_known_of_it(stages: int, chunks: int, multiple: int) -> None:
    """Where all stages are alike, the bubble takes (p - 1) / (v m + p - 1) of the step."""
    pipeline = Pipeline(stages * multiple, chunks)
    busy = _FORWARD + _BACKWARD
    bubble = 1 - busy / _length(pipeline, [1.0] * stages)
    assert bubble == pytest.approx((stages - 1) / (chunks * pipeline.micro_batches + stages - 1))


@pytest.mark.parametrize(("stages", "chunks", "multiple"), LAYOUTS)
def test_each_pass_is_made_once_and_waits_for_the_right_one(stages: int, chunks: int, multiple: int) -> None:
    """A pass follows the one that it needs, of the same micro-batch; the path of each is forth and back through all."""
    pipeline = Pipeline(stages * multiple, chunks)
    passes = order(pipeline, stages)
    assert len({each for each, _ in passes}) == len(passes) == 2 * stages * chunks * pipeline.micro_batches
    done = set[object]()
    after = dict(passes)
    for each, needed in passes:
        assert needed is None or needed in done
        assert needed is None or needed.micro_batch == each.micro_batch
        done.add(each)
    for last in (each for each in after if each.backward and (each.stage, each.chunk) == (0, 0)):
        path, found = 0, after[last]
        while found is not None:
            path, found = path + 1, after[found]
        assert path == 2 * stages * chunks - 1


@given(
    stages=st.lists(st.floats(0.5, 3), min_size=2, max_size=5),
    parts=st.lists(st.floats(0.2, 5), min_size=1, max_size=9),
)
def test_a_step_is_as_long_as_its_longest_path(stages: list[float], parts: list[float]) -> None:
    """No step is shorter than its busiest stage or one micro-batch on its way, nor longer than all passes in a row."""
    pipeline = Pipeline(len(parts))
    length, busy = _length(pipeline, stages, parts), (_FORWARD + _BACKWARD)
    assert length >= busy * max(stages) * (1 - 1e-9)
    assert length >= busy * sum(stages) * max(parts) / sum(parts) * (1 - 1e-9)
    assert length <= busy * sum(stages) * (1 + 1e-9)
    assert _length(pipeline, [2 * stage for stage in stages], parts) == pytest.approx(2 * length)


def test_chunks_take_turns_where_stages_divide_the_micro_batches() -> None:
    """Another number of micro-batches has no interleaved order, and is refused."""
    with pytest.raises(ValueError, match="micro-batches must be a multiple of the 4 stages, got 6"):
        order(Pipeline(6, 2), 4)


def _steps(job: Job, count: int = 40) -> tuple[Array, Array]:
    """Return own time and waits, as step by stage by replica."""
    block = Maker(job, job.ranks, 0.0, 1).make(0.0, np.zeros(job.ranks), count)
    shape = (count, len(job.stages), -1)
    # What follows the meeting belongs to the next step.
    return block.work[: TAIL.start].sum(axis=0).reshape(shape), block.waits.reshape(shape)


def test_ranks_measure_what_the_schedule_leaves() -> None:
    """A slow stage waits least, for its bubble alone, the others for it too; own and waiting add up to the step."""
    mix = tuple(0.0 if phase in (Phase.DATA, Phase.H2D) else share for phase, share in zip(OWN, Job.mix, strict=True))
    plain = replace(_STEADY, mix=mix, stages=(1.0,) * 4)
    own, waits = _steps(plain)
    assert own == pytest.approx(np.full_like(own, mix[2] + mix[3]))
    assert waits[1:] - own[1:] * 3 / 8 == pytest.approx(np.zeros_like(waits[1:]), abs=1e-9)
    _, waits = _steps(replace(plain, stages=(1.0, 1.5, 1.0, 1.0)))
    assert (waits.argmin(axis=1)[1:] == 1).all()
    # All of what the slow stage needs more.
    assert waits[1:, 0] - waits[1:, 1] == pytest.approx(np.full((39, 2), 0.5 * sum(mix)))


def test_a_long_batch_goes_through_all_stages_of_its_replica() -> None:
    """In each step one replica needs twice its time in every stage, and the others wait for it."""
    own, waits = _steps(replace(_STEADY, faults=(Roaming(factor=2.0),)))
    longest = own.argmax(axis=2)
    assert (longest[:, 0] == longest[:, 1]).all()
    assert len(set(longest[:, 0])) == 4
    assert (waits.argmin(axis=2)[1:] == longest[1:]).all()
