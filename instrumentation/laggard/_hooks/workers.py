"""What stands behind a DataLoader: its worker processes, what they use, and the batches that wait.

Nothing here is on the path of a batch. When an iterator is made or starts over, its queue and its processes are noted;
the drain looks at them once a second.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from laggard._hooks.base import Hook
from laggard._hooks.loaders import ITERATORS, Noted
from laggard._part import Host
from laggard.shared import metrics

if TYPE_CHECKING:
    from laggard._report import Report

_PROC = Path("/proc")
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class _Loader:
    """One iterator with workers. Holds none of what its end depends on but the queues, until it is collected."""

    iterator: ref[Any]
    workers: list[Any]
    finished: Any
    """The workers' common queue of results."""
    pinned: Any
    """What a thread that pins memory has taken from there; the same queue without one."""
    early: dict[int, tuple[Any, ...]]
    """Batches by number: with data where one arrived before its turn."""

    def ready(self) -> int:
        """Return how many batches are finished and not yet fetched."""
        # Neither takes a lock: a semaphore's value, and the length of a deque.
        ready = self.finished.qsize() + sum(len(task) > 1 for task in list(self.early.values()))
        return ready if self.pinned is self.finished else ready + len(self.pinned.queue)


@dataclass(frozen=True)
class _Usage:
    """What one process has used so far; times in clock ticks."""

    started: int
    cpu: int
    io_wait: int
    resident: int


class WorkersHook(Hook):
    """Watches the workers of every DataLoader of the process."""

    name = "workers"
    former_name = "prefetch"
    resting_share = 16

    def __init__(self, host: Host, proc: Path = _PROC) -> None:
        super().__init__(host)
        self._proc = proc
        self._loaders: dict[int, _Loader] = {}
        self._loads = False
        self._has_workers = False
        self._usage: dict[int, _Usage] = {}
        self._counts_io_wait: bool | None = None

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the modules of loaders."""
        return dict.fromkeys(ITERATORS, self._patch)

    def uninstall(self) -> None:
        """Undo the patches and forget the loaders."""
        super().uninstall()
        self._loaders.clear()

    def _patch(self, module: ModuleType) -> None:
        base = module._BaseDataLoaderIter  # noqa: SLF001 - it has no public name
        if base.__module__ == module.__name__:
            self.replace(base, "__init__", functools.partial(Noted, self.guarded(self._iterator_made)))
        self.replace(getattr(module, ITERATORS[module.__name__]), "_reset", self._wrap_reset)

    def _wrap_reset(self, reset: Callable[..., None]) -> Callable[..., None]:
        started = self.guarded(self._started)

        @functools.wraps(reset)
        def _reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
            reset(iterator, *args, **kwargs)
            started(iterator)

        return _reset

    def _iterator_made(self, _iterator: Any) -> None:
        self._loads = True

    def _started(self, iterator: Any) -> None:
        """Note an iterator whose workers run and whose bookkeeping is new."""
        loaders, key = self._loaders, id(iterator)
        loaders[key] = _Loader(
            # An iterator that is collected on the drain thread would stop its workers there: so no reference is kept.
            ref(iterator, lambda _: loaders.pop(key, None)),
            iterator._workers,  # noqa: SLF001 - as all of the iterator's state
            iterator._worker_result_queue,  # noqa: SLF001 - as above
            iterator._data_queue,  # noqa: SLF001 - as above
            iterator._task_info,  # noqa: SLF001 - as above
        )
        self._has_workers = True

    def report(self, report: Report) -> None:
        """Report the workers and what waits."""
        if not self._loads:
            return
        loaders = list(self._loaders.values())
        usage = self._read_usage([worker.pid for loader in loaders for worker in loader.workers])
        report.measure(metrics.DATALOADER_WORKERS, len(usage))
        if not self._has_workers:
            return
        report.measure(metrics.DATALOADER_QUEUE_LENGTH, sum(loader.ready() for loader in loaders))
        report.measure(metrics.MEMORY_USAGE, sum(worker.resident for worker in usage.values()), "worker_rss")
        before, self._usage = self._usage, usage
        cpu = io_wait = 0
        for pid, now in usage.items():
            last = before.get(pid)
            if last is None or last.started != now.started:
                last = _Usage(now.started, 0, 0, 0)
            cpu += now.cpu - last.cpu
            io_wait += now.io_wait - last.io_wait
        report.measure(metrics.DATALOADER_WORKER_CPU, cpu * _TICK_SECONDS)
        if self._kernel_counts_io_wait():
            report.measure(metrics.DATALOADER_WORKER_IO_WAIT, io_wait * _TICK_SECONDS)

    def _read_usage(self, pids: list[int]) -> dict[int, _Usage]:
        usage: dict[int, _Usage] = {}
        for pid in pids:
            try:
                text = (self._proc / str(pid) / "stat").read_text()
            except OSError:
                continue  # ended
            # The second field is a name in parentheses that may contain anything; what follows begins with field 3.
            fields = text.rpartition(")")[2].split()
            if fields[0] not in "ZX":
                user, system, started, resident, io_wait = (int(fields[number - 3]) for number in (14, 15, 22, 24, 42))
                usage[pid] = _Usage(started, user + system, io_wait, resident * _PAGE_BYTES)
        return usage

    def _kernel_counts_io_wait(self) -> bool:
        if self._counts_io_wait is None:
            try:
                self._counts_io_wait = (self._proc / "sys/kernel/task_delayacct").read_text().strip() == "1"
            except OSError:
                self._counts_io_wait = False
        return self._counts_io_wait
