"""Garbage collection: counted, attributed to steps, and left alone afterwards."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from laggard._hooks.garbage import _RING, GarbageHook
from laggard._process import Process
from laggard._steps import Step
from tests.support.measured import measure

pytestmark = pytest.mark.timed


@pytest.fixture
def hook(process: Process) -> Iterator[GarbageHook]:
    """The hook of this process, with no collection but those of the test."""
    (found,) = [hook for hook in process._parts if isinstance(hook, GarbageHook)]
    gc.disable()
    measure(found)
    yield found
    gc.enable()


def test_collections_and_their_time_are_counted_by_generation(hook: GarbageHook) -> None:
    """As many as there were, as long as a stopwatch around them says; a generation at rest reports nothing."""
    garbage: list[list[object]] = [[] for _ in range(100_000)]
    garbage[0].append(garbage)
    del garbage
    began = time.perf_counter()
    gc.collect()
    took = time.perf_counter() - began
    gc.collect(0)
    gc.collect(0)
    reported = measure(hook)
    assert {key: values for key, values in reported.items() if key[0] == "training.gc.collections"} == {
        ("training.gc.collections", "0"): [2],
        ("training.gc.collections", "2"): [1],
    }
    (full,) = reported["training.gc.duration", "2"]
    assert full == pytest.approx(took, rel=0.05)
    assert measure(hook) == {}


def test_pauses_belong_to_the_step_that_they_fell_into(hook: GarbageHook) -> None:
    """A pause is cut at the step's edges; one outside of it does not count."""
    hook._pauses.extend([(10, 30), (50, 60), (95, 120), (130, 140)])
    step = Step(1, 20, 100, (), ())
    assert hook.step_attributes(step) == {"training.step.gc": pytest.approx((10 + 10 + 5) * 1e-9)}


def test_more_pauses_than_are_kept_lose_the_oldest_only(hook: GarbageHook) -> None:
    """The ring overflows without an error and the sums stay whole."""
    for _ in range(_RING + 10):
        gc.collect(0)
    hook.steps_ended([])
    assert len(hook._pauses) == _RING
    assert measure(hook)["training.gc.collections", "0"] == [_RING + 10]
    begun = [start for start, _ in hook._pauses]
    assert begun == sorted(begun)


@pytest.mark.usefixtures("hook")
def test_the_callback_keeps_no_object_alive_and_makes_none() -> None:
    """A collection leaves as many tracked objects as before it."""
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(100):
        gc.collect(0)
    assert len(gc.get_objects()) - before <= 1
