"""Collector ``workers``: what the data workers of each rank do, also while the rank itself is stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from laggard_exporter.entry import Entry
from laggard_exporter.ranks import processes
from laggard_exporter.ranks.children import Children
from laggard_exporter.ranks.families import family
from laggard_exporter.ranks.files import RankFiles, RankProcess
from laggard_exporter.ranks.processes import ProcessTimes
from laggard_exporter.samples import Sample

WORKERS = family(
    "workers",
    "gauge",
    "Data workers of the rank by what the kernel says that they do; disk is a wait that nothing interrupts. "
    "Source: processes that torch (from 2.6) names pt_data_worker, /proc/PID/stat.",
    "state",
)
WORKER_CPU = family(
    "worker_cpu_seconds_total",
    "counter",
    "Processor time of the rank's data workers, those that ended included. Source: /proc/PID/stat.",
)
WORKER_IO_WAIT = family(
    "worker_io_wait_seconds_total",
    "counter",
    "Time that the rank's data workers waited for block devices, those that ended included; absent where the kernel "
    "does not count it (sysctl kernel.task_delayacct). Source: /proc/PID/stat.",
)


STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "stopped", "Z": "dead", "X": "dead"}


class _Totals(NamedTuple):
    """Times of a rank's workers that ended, and of each that lives by process and start."""

    cpu: float
    io_wait: float
    live: dict[tuple[int, int], ProcessTimes]


class WorkersCollector:
    """Yields number, processor time and I/O wait of the data workers.

    A rank's totals go on when workers end, as they do at the end of an epoch; they begin anew with the exporter.
    """

    name = "workers"

    def __init__(self, ranks: RankFiles, procfs: Path) -> None:
        self._ranks = ranks
        self._procfs = procfs
        self._children = Children(procfs)
        self._totals: dict[RankProcess, _Totals] = {}

    def collect(self) -> Iterator[Sample]:
        """Yield the workers of each live rank. Raises :class:`OSError` for a folder that cannot be listed."""
        io_wait = processes.counts_io_wait(self._procfs)
        totals: dict[RankProcess, _Totals] = {}
        for rank, children in self._children.of(self._ranks.processes()).items():
            live = self._workers(children)
            totals[rank] = new = _advance(self._totals.get(rank), live)
            states = Counter(STATES.get(times.state, "sleeping") for times in live.values())
            for state in dict.fromkeys(STATES.values()):
                yield Sample(WORKERS, (*rank.labels, state), states[state])
            yield Sample(WORKER_CPU, rank.labels, new.cpu + sum(times.user + times.system for times in live.values()))
            if io_wait:
                waited = new.io_wait + sum(times.io_wait for times in live.values())
                yield Sample(WORKER_IO_WAIT, rank.labels, waited)
        self._totals = totals

    def _workers(self, children: list[int]) -> dict[tuple[int, int], ProcessTimes]:
        found: dict[tuple[int, int], ProcessTimes] = {}
        for pid in children:
            if processes.command(self._procfs, pid) == processes.WORKER_COMMAND:
                times = processes.process_times(self._procfs, pid)
                if times is not None:
                    found[pid, times.start_ticks] = times
        return found


def _advance(before: _Totals | None, live: dict[tuple[int, int], ProcessTimes]) -> _Totals:
    if before is None:
        return _Totals(0.0, 0.0, live)
    ended = [times for key, times in before.live.items() if key not in live]
    return _Totals(
        before.cpu + sum(times.user + times.system for times in ended),
        before.io_wait + sum(times.io_wait for times in ended),
        live,
    )


ENTRY = Entry(
    "data workers of each rank: number, processor time, waits for disks",
    (WORKERS, WORKER_CPU, WORKER_IO_WAIT),
    lambda options: WorkersCollector(RankFiles(options.state_directory), options.procfs),
)
