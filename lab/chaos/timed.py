"""A rank of :mod:`lab.chaos.rank` with a stopwatch on laggard: how long each call of its took on the training thread.

The stopwatch is no part of laggard and does not ask it. Python tells a profile function of every call; a call that
enters laggard's code starts the watch, its return stops it, and what laggard wraps, which is torch's own, stops it
meanwhile. So does a collection of garbage: whoever allocates next begins one, and it cleans up after everybody.

A call takes the processor's time of the thread, and the time that the thread waits otherwise: for a lock, for a disk,
for the interpreter that another thread has. From that is taken what the kernel says that this thread, or such another
one, waited for a processor: on a machine with more work than processors that is nobody's fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from threading import get_native_id
from time import perf_counter_ns, thread_time_ns
from types import FrameType
from typing import Any, NamedTuple

import laggard
from laggard._hooks.base import Hook

_LAGGARD = str(Path(laggard.__file__).parent) + os.sep


class Clock(NamedTuple):
    """What has passed, in nanoseconds: on the wall, of the thread's processor, and waiting for a processor."""

    wall: int
    processor: int
    #: This thread, and all others of the process.
    delayed: int
    others_delayed: int


class Schedule:
    """The kernel's word on how long threads of this process have waited for a processor."""

    def __init__(self) -> None:
        # Through Python's own function every reading would hand the interpreter to another thread.
        self._pread = ctypes.PyDLL(None).pread
        self._text = ctypes.create_string_buffer(64)
        self._own = self._open(get_native_id())
        self._others: dict[int, int] = {}

    def begin(self) -> Clock:
        """Return what has passed on the thread that asks; nothing of this is in what begins now."""
        others, delayed = self._others_delay(), self._delay(self._own)
        return Clock(processor=thread_time_ns(), wall=perf_counter_ns(), delayed=delayed, others_delayed=others)

    def end(self) -> Clock:
        """Return the same; nothing of this is in what ends now."""
        wall, processor = perf_counter_ns(), thread_time_ns()
        return Clock(wall, processor, self._delay(self._own), self._others_delay())

    def look(self) -> None:
        """Take note of the threads that there are, of those that may have the interpreter."""
        for thread in map(attrgetter("native_id"), threading.enumerate()):
            if thread not in (None, *self._others, get_native_id()):
                with contextlib.suppress(OSError):  # it has just ended
                    self._others[thread] = self._open(thread)

    @staticmethod
    def _open(thread: int) -> int:
        return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)

    def _others_delay(self) -> int:
        return sum(map(self._delay, self._others.values()))

    def _delay(self, file: int) -> int:
        size = self._pread(file, self._text, 64, 0)
        return int(self._text.raw[:size].split()[1]) if size > 0 else 0  # less than nothing: it has ended


def taken(began: Clock, ended: Clock) -> int:
    """Return what a call took, in nanoseconds."""
    wall, processor, delayed, others = (after - before for before, after in zip(began, ended, strict=True))
    return processor + max(0, wall - delayed - processor - max(0, others))


class Stopwatch:
    """Times what laggard does on the thread that makes it. One a process."""

    def __init__(self) -> None:
        self._schedule = Schedule()
        #: The frame by which laggard was entered, and what this call has taken before it was last interrupted.
        self._entered: FrameType | None = None
        self._taken = 0
        self._since = Clock(0, 0, 0, 0)
        self._interrupted: list[tuple[FrameType | None, int]] = []
        self.count = 0
        self.longest = 0
        self.where = ""
        self.total = 0

    def install(self) -> None:
        """Have the watch stopped inside of whatever laggard will wrap. Before torch is imported."""
        replace, interrupting = Hook.replace, self._interrupting

        def replacing(self: Hook, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            replace(self, owner, name, lambda original: make(interrupting(original)))

        Hook.replace = replacing

    def start(self) -> None:
        """Begin, on this thread alone; a child that is forked is not timed."""
        self._schedule.look()
        gc.callbacks.append(self._collection)
        os.register_at_fork(after_in_child=lambda: sys.setprofile(None))
        sys.setprofile(self._profile)

    def stop(self) -> None:
        """End."""
        sys.setprofile(None)
        gc.callbacks.remove(self._collection)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            if self._entered is None and frame.f_code.co_filename.startswith(_LAGGARD):
                self._entered = frame
                self._since = self._schedule.begin()
        elif event == "return" and frame is self._entered:
            self._stop()
            total, self._entered, self._taken = self._taken, None, 0
            if self.count % 100 == 0:
                self._schedule.look()
            self.count += 1
            self.total += total
            if total > self.longest:
                function = frame.f_locals.get("function")  # what the guard of a hook calls
                self.longest, self.where = total, getattr(function, "__qualname__", frame.f_code.co_name)

    def _stop(self) -> None:
        self._taken += taken(self._since, self._schedule.end())

    def _interrupt(self) -> None:
        if self._entered is not None:
            self._stop()
        self._interrupted.append((self._entered, self._taken))
        self._entered, self._taken = None, 0

    def _resume(self) -> None:
        self._entered, self._taken = self._interrupted.pop()
        if self._entered is not None:
            self._since = self._schedule.begin()

    def _collection(self, phase: str, _: object) -> None:
        if phase == "start":
            self._interrupt()
        else:
            self._resume()

    def _interrupting(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return original(*args, **kwargs)
            self._interrupt()
            try:
                return original(*args, **kwargs)
            finally:
                self._resume()

        return call


def main() -> None:
    """Train, and write into ``CHAOS_FOLDER`` what laggard took from the second step on: a start imports for seconds."""
    watch = Stopwatch()
    watch.install()
    from lab.chaos import rank  # noqa: PLC0415 - brings torch

    def keep_sockets(folder: Path) -> None:
        original(folder)
        began.extend((time.perf_counter(), _drain_seconds()))
        watch.start()

    began: list[float] = []
    original, rank.keep_sockets = rank.keep_sockets, keep_sockets
    rank.main()
    watch.stop()
    found = {
        "longest": watch.longest * 1e-9,
        "where": watch.where,
        "count": watch.count,
        "calls": watch.total * 1e-9,
        "drain": _drain_seconds() - began[1],
        "training": time.perf_counter() - began[0],
    }
    (Path(os.environ["CHAOS_FOLDER"]) / f"calls{os.environ['RANK']}").write_text(json.dumps(found))


def _drain_seconds() -> float:
    threads = [thread.ident for thread in threading.enumerate() if thread.name == "laggard-drain" and thread.ident]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread)) for thread in threads)


if __name__ == "__main__":
    main()
