"""Waits for peers, on whichever thread they happen.

With a device, backward runs on a thread of autograd's while the thread that trains is held until it has ended. What is
waited for there is timed by edges of its own; a stream is held up by it, not the host.
"""

from __future__ import annotations

import sys
from time import perf_counter_ns

from laggard._events import Token
from laggard._hooks.exposure import Exposure
from laggard._recorder import Recorder
from laggard.shared.phases import Phase

_ON_AUTOGRAD_THREAD = -1
#: A plain number is cheaper to pass than a member of an enumeration.
_COMMUNICATION = int(Phase.COMMUNICATION)


def in_backward(recorder: Recorder) -> bool:
    """Return whether this is autograd's thread of a device, at work for the thread that trains.

    Threads of the script's own, such as one that saves a checkpoint, communicate meanwhile too.
    """
    if recorder.device is None or recorder.phase != Phase.BACKWARD:
        return False
    task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)  # noqa: SLF001 - no public way to ask
    return task is None or task() >= 0


def elsewhere(exposure: Exposure) -> bool:
    """Return whether the current stream of the device is not the one that backward runs in: it holds nobody up."""
    current, compute = exposure.current_stream, exposure.compute_stream
    try:
        return current is not None and compute is not None and current() != compute
    except Exception:  # a device in error, which the script will hear of
        return False


def begin_wait(recorder: Recorder) -> Token | None:
    """Begin a wait; ``None`` on a thread that neither trains nor runs backward for one that does."""
    token = recorder.begin(_COMMUNICATION)
    if token is None and in_backward(recorder):
        started = perf_counter_ns()
        recorder.edge(started)
        return _COMMUNICATION, _ON_AUTOGRAD_THREAD, started
    return token


def end_wait(recorder: Recorder, exposure: Exposure, token: Token | None) -> int:
    """End a wait; return the ``perf_counter_ns`` at which it ended, 0 for a token of ``None``."""
    if token is None:
        return 0
    _code, outer, started = token
    if outer == _ON_AUTOGRAD_THREAD:
        return add_wait(recorder, exposure, started)
    exposure.waited += 1
    exposure.waited_in_backward += outer == Phase.BACKWARD
    return recorder.end(token)


def add_wait(recorder: Recorder, exposure: Exposure, started: int) -> int:
    """Add a wait that ends now and began at an edge; return the ``perf_counter_ns`` at which it ended."""
    exposure.waited += 1
    exposure.waited_in_backward += recorder.phase == Phase.BACKWARD
    ended = perf_counter_ns()
    recorder.edge(ended)
    recorder.add(_COMMUNICATION, started, ended)
    return ended
