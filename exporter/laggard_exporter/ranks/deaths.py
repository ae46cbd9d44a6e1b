"""When the kernel ended the processes of ranks, to the millisecond: of those too that could not say so."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from laggard.shared import statefile
from laggard.shared.statefile import Snapshot
from laggard_exporter.ranks import processes

#: What names a process of this boot: its number may be another's a moment later, its start is its own.
_Key = tuple[int, int]


class Deaths:
    """Notes when each process that was :meth:`watched <watch>` ended. ``clock`` gives nanoseconds since boot.

    ``procfs`` shows the processes of the exporter's own process namespace.

    The kernel wakes a thread of this object through a descriptor of the process (pidfd, Linux 5.3). A process that the
    exporter's namespace does not show is known to have lived until it was last watched, and no more.
    """

    def __init__(self, procfs: Path, *, clock: Callable[[], int] = statefile.boottime_ns) -> None:
        self._procfs = procfs
        self._clock = clock
        self._watched: dict[int, _Key] = {}
        self._ended: dict[_Key, int] = {}
        self._lived: dict[_Key, int] = {}
        self._poll: select.epoll | None = None
        self._lock = threading.Lock()

    def watch(self, file: Snapshot) -> None:
        """Note when the process of a rank that lives now ends. At each call it is known to live."""
        key = _key(file)
        self._lived[key] = self._clock()
        with self._lock:
            if not file.holder_pid or key in self._watched.values():
                return
            with contextlib.suppress(OSError, AttributeError):
                descriptor = os.pidfd_open(file.holder_pid)
                # The number may have become another process's since the lock was seen.
                times = processes.process_times(self._procfs, file.holder_pid)
                if times is None or times.start_ticks != file.facts.pid_start_ticks:
                    os.close(descriptor)
                    return
                if self._poll is None:
                    self._poll = select.epoll()
                    threading.Thread(target=self._wait, args=(self._poll,), name="laggard-deaths", daemon=True).start()
                self._watched[descriptor] = key
                self._poll.register(descriptor, select.EPOLLIN)

    def ended_ns(self, file: Snapshot) -> int:
        """Return when the kernel ended the process; 0 where nobody saw it."""
        return self._ended.get(_key(file), 0)

    def lived_ns(self, file: Snapshot) -> int:
        """Return when the process was last known to live, by the exporter; 0 where it never was."""
        return self._lived.get(_key(file), 0)

    def keep(self, files: Iterable[Snapshot]) -> None:
        """Forget all processes but these."""
        keys = set(map(_key, files))
        self._lived = {key: time for key, time in self._lived.items() if key in keys}
        with self._lock:
            self._ended = {key: time for key, time in self._ended.items() if key in keys}

    def _wait(self, poll: select.epoll) -> None:
        while True:
            for descriptor, _ in poll.poll():
                now = self._clock()
                with self._lock:
                    self._ended[self._watched.pop(descriptor)] = now
                    poll.unregister(descriptor)
                    os.close(descriptor)


def _key(file: Snapshot) -> _Key:
    return file.facts.pid, file.facts.start_boottime_ns
