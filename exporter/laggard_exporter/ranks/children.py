"""The processes that ranks have started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from laggard_exporter.ranks import processes
from laggard_exporter.ranks.files import RankProcess

#: A rank has hundreds of threads and few of them start processes. All are looked at once in so many seconds.
ALL_THREADS_SECONDS = 30.0


class Children:
    """Finds the processes that ranks have started, of any of their threads."""

    def __init__(self, procfs: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._procfs = procfs
        self._clock = clock
        self._parents: dict[int, list[int]] = {}
        self._look_at_all = 0.0

    def of(self, ranks: Iterable[RankProcess]) -> dict[RankProcess, list[int]]:
        """Return the children of each rank, and the children of these: a fork server starts workers for its parent.

        A rank is left out whose children are not shown: the kernel has no such file, or hides the process (hidepid).
        """
        now = self._clock()
        everything = now >= self._look_at_all
        if everything:
            self._look_at_all = now + ALL_THREADS_SECONDS
            self._parents = {}
        shown = (rank for rank in ranks if processes.shows_children(self._procfs, rank.pid))
        return {rank: list(self._descendants(rank.pid)) for rank in shown}

    def _descendants(self, pid: int) -> Iterator[int]:
        found = self._children(pid)
        yield from found
        for child in found:
            yield from processes.children(self._procfs, child, child)

    def _children(self, pid: int) -> list[int]:
        found: dict[int, list[int]] = {}
        for thread in self._parents.get(pid) or processes.threads(self._procfs, pid):
            if (children := processes.children(self._procfs, pid, thread)) or thread == pid:
                found[thread] = children
        if found:
            self._parents[pid] = list(found)
        return [child for children in found.values() for child in children]
