"""Collector ``scheduling``: whether each rank gets the processors that it wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from laggard_exporter import files
from laggard_exporter.entry import Entry
from laggard_exporter.ranks import processes
from laggard_exporter.ranks.families import family
from laggard_exporter.ranks.files import RankFiles, RankProcess
from laggard_exporter.samples import Sample

CPU = family(
    "cpu_seconds_total",
    "counter",
    "Processor time of all threads of the rank's process, without its children. Source: /proc/PID/stat.",
    "mode",
)
RUN_DELAY = family(
    "run_delay_seconds_total",
    "counter",
    "Time that the rank's main thread was ready to run and waited for a processor. Source: /proc/PID/schedstat.",
)
CPUS_ALLOWED = family(
    "cpus_allowed",
    "gauge",
    "Logical processors on which the rank's main thread may run. Source: /proc/PID/status Cpus_allowed_list.",
)
CONTEXT_SWITCHES = family(
    "context_switches_total",
    "counter",
    "Times that the rank's main thread gave its processor up, or lost it to another (involuntary). "
    "Source: /proc/PID/status.",
    "kind",
)
MAJOR_FAULTS = family(
    "major_page_faults_total",
    "counter",
    "Accesses to memory of the rank's process that had to wait for a disk. Source: /proc/PID/stat.",
)

_NANOSECONDS = 1_000_000_000

_SWITCHES = {"voluntary_ctxt_switches": "voluntary", "nonvoluntary_ctxt_switches": "involuntary"}


class SchedulingCollector:
    """Yields processor time, waits for a processor and the processors allowed of each live rank."""

    name = "scheduling"

    def __init__(self, ranks: RankFiles, procfs: Path) -> None:
        self._ranks = ranks
        self._procfs = procfs

    def collect(self) -> Iterator[Sample]:
        """Yield the facts of each live rank. Raises :class:`OSError` for a folder that cannot be listed."""
        for rank in self._ranks.processes():
            times = processes.process_times(self._procfs, rank.pid)
            if times is None:
                continue
            yield Sample(CPU, (*rank.labels, "user"), times.user)
            yield Sample(CPU, (*rank.labels, "system"), times.system)
            yield Sample(MAJOR_FAULTS, rank.labels, times.major_faults)
            yield from self._main_thread(rank)

    def _main_thread(self, rank: RankProcess) -> Iterator[Sample]:
        entry = self._procfs / str(rank.pid)
        # Run time, run delay and time slices; zeros where the kernel does not count (CONFIG_SCHED_INFO).
        run_time, delay = [*(files.read_text(entry / "schedstat") or "").split(), "", ""][:2]
        if delay.isdecimal() and run_time != "0":
            yield Sample(RUN_DELAY, rank.labels, int(delay) / _NANOSECONDS)
        for line in (files.read_text(entry / "status") or "").splitlines():
            name, _, value = line.partition(":")
            if name in _SWITCHES:
                yield Sample(CONTEXT_SWITCHES, (*rank.labels, _SWITCHES[name]), int(value))
            elif name == "Cpus_allowed_list":
                yield Sample(CPUS_ALLOWED, rank.labels, _count(value.strip()))


def _count(ranges: str) -> int:
    """Return how many numbers a list such as ``0-3,8`` holds."""
    pairs = (part.partition("-") for part in ranges.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in pairs)


ENTRY = Entry(
    "whether each rank gets the processors that it wants",
    (CPU, RUN_DELAY, CPUS_ALLOWED, CONTEXT_SWITCHES, MAJOR_FAULTS),
    lambda options: SchedulingCollector(RankFiles(options.state_directory), options.procfs),
)
