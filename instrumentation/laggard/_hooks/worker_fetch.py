"""How long a data worker needs for one batch, measured where that happens: in the worker.

A worker times its fetcher and writes the duration into a pipe that all workers of a rank share; the rank's drain
reads it. Eight bytes are written at once or not at all, so no lock is needed, and a pipe that nobody empties is full
after 8192 batches: what does not fit is left out, and no worker ever waits. The batch itself is not touched.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import get_spawning_popen
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any

from laggard._hooks.base import Hook
from laggard._hooks.loaders import ITERATORS, WORKER_LOOPS, Noted
from laggard._part import Host
from laggard.shared import metrics

if TYPE_CHECKING:
    from laggard._report import Report

_FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")
_DURATION_BYTES = 8
#: Durations reported by one drain; the rest waits in the pipe for the next one.
_MAX_REPORTED = 1024


class WorkerFetchHook(Hook):
    """Gives workers a pipe when they are started, and reports what they write."""

    name = "worker_fetch"
    former_name = "fetch"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._owner = 0
        self._reader: Connection | None = None
        self._writer: Connection | None = None
        self._loops: list[_WorkerLoop] = []

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for what starts workers and for what runs in them."""
        return dict.fromkeys((*ITERATORS, *WORKER_LOOPS), self._patch)

    def uninstall(self) -> None:
        """Undo the patches and give the pipe up; workers that still run write into it in vain."""
        super().uninstall()
        self._reader = self._writer = None
        while self._loops:
            self._loops.pop().writer = None

    def report(self, report: Report) -> None:
        """Report the batches that workers have made."""
        reader = self._reader
        if reader is None or self._owner != os.getpid():
            return
        with suppress(BlockingIOError):
            durations = memoryview(os.read(reader.fileno(), _MAX_REPORTED * _DURATION_BYTES)).cast("q")
            for duration in durations:
                report.measure(metrics.DATALOADER_FETCH_DURATION, duration * 1e-9)

    def _patch(self, module: ModuleType) -> None:
        iterator = getattr(module, ITERATORS.get(module.__name__, ""), None)
        if iterator is not None:
            open_pipe = self.guarded(self._open_pipe)
            self.replace(iterator, "__init__", functools.partial(Noted, open_pipe))
        if module.__name__ in WORKER_LOOPS:
            self.replace(module, "_worker_loop", functools.partial(self._wrap_loop, module.__name__))

    def _wrap_loop(self, module: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = _WorkerLoop(loop, module, self._writer)
        self._loops.append(wrapped)
        return wrapped

    def _open_pipe(self, _iterator: Any) -> None:
        # A rank that was forked has its parent's pipe and needs one of its own.
        if self._owner == os.getpid() or not self.recorder.enabled:
            return
        reader, writer = multiprocessing.Pipe(duplex=False)
        for end in (reader, writer):
            os.set_blocking(end.fileno(), False)
        self._owner = os.getpid()
        self._reader, self._writer = reader, writer
        for loop in self._loops:
            loop.writer = writer


class _WorkerLoop:
    """Stands in for the function that a worker runs. Forked, a worker has it; spawned, it gets it as a pickle."""

    def __init__(self, loop: Callable[..., Any], module: str, writer: Connection | None) -> None:
        functools.update_wrapper(self, loop)
        # Where it is found by its name: in the module that starts workers with it.
        self.__module__ = module
        self._loop = loop
        self.writer = writer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.writer is not None:
            with suppress(Exception):
                _time_fetchers(self.writer)
        return self._loop(*args, **kwargs)

    def __reduce__(self) -> str | tuple[Callable[..., Any], tuple[Any, ...]]:
        # A pipe can be handed over while a process is being started, and only then.
        if self.writer is None or get_spawning_popen() is None:
            return "_worker_loop"
        return _in_spawned_worker, (self.__module__, self.writer)


def _in_spawned_worker(module: str, writer: Connection) -> Callable[..., Any]:
    """Return what a spawned worker runs: the function as this process has it, with the pipe."""
    return _WorkerLoop(getattr(import_module(module), "_worker_loop"), module, writer)  # noqa: B009 - torch's own name


def _time_fetchers(writer: Connection) -> None:
    fetchers = sys.modules["torch.utils.data._utils.fetch"]
    for name in _FETCHERS:
        fetcher = getattr(fetchers, name)
        fetcher.fetch = _timed(fetcher.fetch, writer)


def _timed(fetch: Callable[[Any, Any], Any], writer: Connection) -> Callable[[Any, Any], Any]:
    pipe = writer.fileno()

    @functools.wraps(fetch)
    def timed_fetch(fetcher: Any, index: Any) -> Any:
        started = perf_counter_ns()
        batch = fetch(fetcher, index)
        duration = perf_counter_ns() - started
        with suppress(OSError):  # full, or the rank is gone
            os.write(pipe, duration.to_bytes(_DURATION_BYTES, sys.byteorder))
        return batch

    return timed_fetch
