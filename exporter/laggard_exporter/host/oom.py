"""Collector ``oom``: processes that the kernel killed for lack of memory, and which rank lost one."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from laggard_exporter import files
from laggard_exporter.entry import Entry
from laggard_exporter.host.families import family
from laggard_exporter.kernel_log import OOM_KILL, KernelLog
from laggard_exporter.ranks import families as ranks
from laggard_exporter.ranks.children import Children
from laggard_exporter.ranks.files import RankFiles, RankProcess
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Sample

OOM_KILLS = family(
    "oom_kills_total", "counter", "Processes that the kernel killed for lack of memory. Source: /proc/vmstat oom_kill."
)
OOM_KILLED = ranks.family(
    "oom_kills_total",
    "counter",
    "Processes of the rank that the kernel killed for lack of memory: its own or a child. Source: /dev/kmsg.",
    "victim",
)

#: A process is remembered for so many seconds after it was last seen: the kernel's message comes after its end.
REMEMBERED_SECONDS = 15 * 60

VICTIMS = ("rank", "child")


class OomCollector:
    """Yields the kernel's count of kills, and for each rank those of its own processes.

    Where ``log`` may not be read, the kills of ranks are absent and the reason is in ``notes``.
    """

    name = "oom"

    def __init__(
        self,
        ranks: RankFiles,
        procfs: Path,
        host: str,
        log: KernelLog,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.notes: list[str] = []
        self._ranks = ranks
        self._procfs = procfs
        self._host = host
        self._children = Children(procfs, clock=clock)
        self._clock = clock
        self._seen: dict[int, tuple[float, RankProcess, str]] = {}
        self._kills: Counter[tuple[str, str, str]] = Counter()
        self._log = log.reader(OOM_KILL)

    def collect(self) -> Iterator[Sample]:
        """Yield the counts. Raises :class:`OSError` for a folder of state files that cannot be listed."""
        yield from self._ranks_kills()
        kills = re.search(r"^oom_kill ([0-9]+)$", files.read_text(self._procfs / "vmstat") or "", re.MULTILINE)
        if kills:
            yield Sample(OOM_KILLS, (self._host,), int(kills[1]))
        elif self._log.problem:
            raise UnsupportedError(f"{self._procfs / 'vmstat'} does not count oom_kill (kernels from 4.13 on do)")

    def _ranks_kills(self) -> Iterator[Sample]:
        # The messages first: who was killed since the last look is known from that look.
        messages = self._log.read()
        self.notes = []
        if self._log.problem:
            self.notes = [f"kills are not told by rank: {self._log.problem}; give the exporter CAP_SYSLOG"]
            return
        for message in messages:
            if victim := self._seen.get(int(message.match[1])):
                _, rank, kind = victim
                self._kills[(*rank.labels, kind)] += 1
        live, hidden = self._look()
        kept = {rank.labels for _, rank, _ in self._seen.values()} | live
        self._kills = Counter({key: count for key, count in self._kills.items() if key[:2] in kept})
        for labels in kept:
            for kind in VICTIMS[:1] if labels in hidden else VICTIMS:
                yield Sample(OOM_KILLED, (*labels, kind), self._kills[(*labels, kind)])

    def _look(self) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """Return the ranks that live, and those of them whose children are not shown."""
        now = self._clock()
        live = self._ranks.processes()
        children = self._children.of(live)
        for rank in live:
            self._seen |= dict.fromkeys(children.get(rank, ()), (now, rank, "child"))
            self._seen[rank.pid] = (now, rank, "rank")
        self._seen = {pid: seen for pid, seen in self._seen.items() if seen[0] > now - REMEMBERED_SECONDS}
        return {rank.labels for rank in live}, {rank.labels for rank in live if rank not in children}


ENTRY = Entry(
    "processes killed for lack of memory, and whose they were",
    (OOM_KILLS, OOM_KILLED),
    lambda options: OomCollector(
        RankFiles(options.state_directory),
        options.procfs,
        options.host,
        options.shared_kernel_log,
    ),
)
