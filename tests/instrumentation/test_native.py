"""What is native holds nothing back, takes nothing that it cannot write to, and stands in for what it wraps.

What it shares with the hot path in Python is in ``test_recorder.py``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from laggard import _events
from laggard._events import EVALUATION_FORWARD, GRADIENT, NO_GRAD_FORWARD, OPTIMIZER_STEP
from laggard._hooks.torch_compile_state import Traced
from laggard._recorder import Recorder
from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._native import HotPath


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Give one whose hot path is native."""
    monkeypatch.setenv("LAGGARD_HOT_PATH", "native")
    return Recorder()


@pytest.fixture
def native(recorder: Recorder) -> HotPath:
    """Give the hot path."""
    assert recorder.native is not None, "python hatch_build.py compiles it"
    return recorder.native


def test_words_that_are_no_memory_of_a_state_file_are_refused(recorder: Recorder) -> None:
    """What is native writes by address, so it looks at what it is given."""
    for wrong, error in (
        (bytearray(8 * 512), TypeError),
        (memoryview(bytearray(8)).cast("Q"), ValueError),
        (memoryview(bytes(8 * 512)).cast("Q"), ValueError),
        (memoryview(bytearray(8 * 512)), ValueError),
        (memoryview(bytearray(16 * 512)).cast("Q")[::2], ValueError),
    ):
        with pytest.raises(error):
            recorder.words = wrong  # pyright: ignore[reportAttributeAccessIssue] - on purpose
        assert recorder.words is None
    for token in ((), (1, 2), 5, ("a", "b", "c")):
        with pytest.raises(TypeError):
            recorder.end(token)  # pyright: ignore[reportArgumentType] - on purpose


def fetched(iterator: object, *_more: object, **_named: object) -> object:
    """Stand in for what a wrapper calls."""
    if iterator is None:
        raise StopIteration
    return [iterator]


def test_what_is_native_keeps_nothing_that_it_is_given(recorder: Recorder, native: HotPath) -> None:
    """However a call ends, with and without a device, no object is left over after thousands of calls."""
    traced, told = Traced(), []
    compiler = ModuleType("compiler")
    next_ = native.timed_fetch(fetched, Phase.DATA, _events.FIRST_BATCH, _events.EXHAUSTED, lambda _: 1)
    around = native.around(fetched, lambda _: True, lambda _state, _succeeded, _result: None)
    forward = native.timed_forward(
        fetched,
        Phase.FORWARD,
        EVALUATION_FORWARD,
        NO_GRAD_FORWARD,
        compiler,
        traced,
        SimpleNamespace,
        lambda: True,
        lambda _: None,
        None,
        bool,
        set(),
    )
    observers: list[Callable[[int, int], None]] = [lambda _started, _ended: None]
    backward = native.timed_backward(fetched, Phase.BACKWARD, GRADIENT, lambda: told.append(1), observers)
    batches = (SimpleNamespace(_num_yielded=0), SimpleNamespace(_num_yielded=1, training=True), None)
    running: list[object] = []
    optimizer = object()

    def fail(_at: int) -> None:
        raise RuntimeError

    def everything() -> None:
        for device in (None, lambda _at: None, fail):
            recorder.device = device
            for given in batches:
                for call in (next_, around, functools.partial(backward, accumulate_grad=True)):
                    with suppress(StopIteration):
                        call(given)
                for more in ((), tuple(range(30))):
                    with suppress(StopIteration):
                        forward(given, more, {"named": True})
            assert native.step_begins(running, optimizer, OPTIMIZER_STEP)
            assert not native.step_begins(running, optimizer, OPTIMIZER_STEP)
            assert native.step_ends(running, optimizer)
            assert not native.step_ends(running, optimizer)
            recorder.end(recorder.begin(Phase.OTHER))
            recorder.end(recorder.evaluate())
            with suppress(TypeError):
                recorder.end(())  # pyright: ignore[reportArgumentType] - on purpose
            recorder.mark(_events.UPDATE)
            recorder.resume(1)
            recorder.words = memoryview(bytearray(8 * 512)).cast("Q")
        recorder.words = None
        recorder.drain()

    for _ in range(10):
        everything()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        everything()
    assert sys.getallocatedblocks() - before < 100
    assert (len(told), recorder.failures, recorder.phase, recorder.waiting) == (1, 1010, Phase.OTHER, 0)


def test_a_wrapper_is_for_its_class_what_it_wraps(native: HotPath) -> None:
    """It binds like a function, says what it wraps, and is pickled and copied as that: others have their own."""
    timed = functools.update_wrapper(native.timed_fetch(fetched, Phase.DATA, 1, 2, lambda _: 1), fetched)
    loader: Any = type("Loader", (), {"__next__": timed, "fetched": timed, "__iter__": lambda self: self})()
    assert (next(loader), loader.fetched(), timed(loader)) == ([loader], [loader], [loader])
    assert inspect.signature(timed) == inspect.signature(fetched)
    assert (timed.__name__, timed.__doc__, timed.__module__) == (fetched.__name__, fetched.__doc__, __name__)
    assert pickle.loads(pickle.dumps(timed)) is copy.deepcopy(timed) is copy.copy(timed) is fetched
    with pytest.raises(TypeError, match="fetched"):
        timed()
