"""Collector ``cgroup``: what the limits of its container or job step cost each rank. Control groups of version 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from laggard_exporter import files
from laggard_exporter.entry import Entry
from laggard_exporter.ranks import processes
from laggard_exporter.ranks.families import family
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Sample

CGROUP_THROTTLED = family(
    "cgroup_throttled_seconds_total",
    "counter",
    "Time that the rank's control group had used up its share of processors. Source: cpu.stat throttled_usec.",
)
CGROUP_PRESSURE = family(
    "cgroup_pressure_seconds_total",
    "counter",
    "Time in which tasks of the rank's control group waited for the resource: some of them, or all that were not idle "
    "(full). Source: cpu.pressure, io.pressure, memory.pressure.",
    "resource",
    "tasks",
)
CGROUP_CPU_LIMIT = family(
    "cgroup_cpu_limit",
    "gauge",
    "Processors that the rank's control group may use, the least of it and those above; absent without a limit. "
    "Source: cpu.max.",
)
CGROUP_MEMORY = family(
    "cgroup_memory_used_bytes",
    "gauge",
    "Memory that the rank's control group uses, caches included. Source: memory.current.",
)
CGROUP_MEMORY_LIMIT = family(
    "cgroup_memory_limit_bytes",
    "gauge",
    "Memory that the rank's control group may use, the least of it and those above; absent without a limit. "
    "Source: memory.max.",
)
CGROUP_OOM_KILLS = family(
    "cgroup_oom_kills_total",
    "counter",
    "Processes that the kernel killed in the rank's control group for lack of memory. Source: memory.events oom_kill.",
)

_MICROSECONDS = 1_000_000


class CgroupCollector:
    """Yields throttling, pressure, memory and limits of each live rank's control group."""

    name = "cgroup"

    def __init__(self, ranks: RankFiles, procfs: Path, sysfs: Path) -> None:
        self._ranks = ranks
        self._procfs = procfs
        self._sysfs = sysfs
        self._root = sysfs / "fs" / "cgroup"

    def collect(self) -> Iterator[Sample]:
        """Yield the facts of each live rank. Raises :class:`OSError` for a folder that cannot be listed."""
        if not (self._root / "cgroup.controllers").exists():
            raise UnsupportedError(f"{self._root} has no control groups of version 2")
        for rank in self._ranks.processes():
            if (group := processes.control_group(self._procfs, self._sysfs, rank.pid)) is not None:
                yield from self._samples(group, rank.labels)

    def _samples(self, group: Path, labels: tuple[str, ...]) -> Iterator[Sample]:
        if (throttled := _value(group / "cpu.stat", "throttled_usec")) is not None:
            yield Sample(CGROUP_THROTTLED, labels, throttled / _MICROSECONDS)
        if (killed := _value(group / "memory.events", "oom_kill")) is not None:
            yield Sample(CGROUP_OOM_KILLS, labels, killed)
        if (used := files.read_number(group / "memory.current")) is not None:
            yield Sample(CGROUP_MEMORY, labels, used)
        for resource in ("cpu", "io", "memory"):
            for line in (files.read_text(group / f"{resource}.pressure") or "").splitlines():
                tasks, _, fields = line.partition(" ")
                total = fields.rpartition("total=")[2]
                if total.isdecimal():
                    yield Sample(CGROUP_PRESSURE, (*labels, resource, tasks), int(total) / _MICROSECONDS)
        if (processors := self._least(group, _processors)) is not None:
            yield Sample(CGROUP_CPU_LIMIT, labels, processors)
        if (memory := self._least(group, lambda folder: files.read_number(folder / "memory.max"))) is not None:
            yield Sample(CGROUP_MEMORY_LIMIT, labels, memory)

    def _least(self, group: Path, limit: Callable[[Path], float | None]) -> float | None:
        """Return the least limit of the group and of those above it."""
        limits = [
            value
            for folder in (group, *group.parents)
            if folder.is_relative_to(self._root)
            if (value := limit(folder)) is not None
        ]
        return min(limits, default=None)


def _processors(folder: Path) -> float | None:
    quota, _, period = (files.read_text(folder / "cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _value(path: Path, name: str) -> int | None:
    for line in (files.read_text(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return None


ENTRY = Entry(
    "what the limits of its container or job cost each rank (control groups of version 2)",
    (CGROUP_THROTTLED, CGROUP_PRESSURE, CGROUP_CPU_LIMIT, CGROUP_MEMORY, CGROUP_MEMORY_LIMIT, CGROUP_OOM_KILLS),
    lambda options: CgroupCollector(RankFiles(options.state_directory), options.procfs, options.sysfs),
)
