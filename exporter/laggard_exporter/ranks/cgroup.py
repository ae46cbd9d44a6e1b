"""Collector ``cgroup``: what the limits of its container or job step cost each rank, by control groups."""

from __future__ import annotations

from collections.abc import Iterator
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
    "Time that the rank's control group, and those above it, had used up their share of processors. Source: cpu.stat "
    "throttled_usec or throttled_time.",
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
    "Source: cpu.max or cpu.cfs_quota_us.",
)
CGROUP_MEMORY = family(
    "cgroup_memory_used_bytes",
    "gauge",
    "Memory that the rank's control group uses, caches included. Source: memory.current or memory.usage_in_bytes.",
)
CGROUP_MEMORY_LIMIT = family(
    "cgroup_memory_limit_bytes",
    "gauge",
    "Memory that the rank's control group may use, the least of it and those above; absent without a limit. "
    "Source: memory.max or memory.limit_in_bytes.",
)
CGROUP_OOM_KILLS = family(
    "cgroup_oom_kills_total",
    "counter",
    "Processes that the kernel killed in the rank's control group for lack of memory. Source: oom_kill in "
    "memory.events or memory.oom_control.",
)

_MICROSECONDS, _NANOSECONDS = 1_000_000, 1_000_000_000
#: Version 1 writes the largest number of pages where memory has no limit.
_NO_LIMIT = 1 << 62
#: The hierarchies that are read: that of version 2, and two of version 1. The kernel has a controller in one of them.
_CONTROLLERS = ("", "cpu", "memory")


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
        if not any((self._root / name).exists() for name in ("cgroup.controllers", "cpu", "memory")):
            raise UnsupportedError(f"{self._root} has no control groups")
        for rank in self._ranks.processes():
            yield from self._samples(rank.pid, rank.labels)

    def _samples(self, pid: int, labels: tuple[str, ...]) -> Iterator[Sample]:
        unified, cpu, memory = (self._groups(pid, controller) for controller in _CONTROLLERS)
        # The kernel counts at the group that has the limit, which is often one above the rank's.
        throttled = [value / _MICROSECONDS for value in _values(unified, "cpu.stat", "throttled_usec")]
        throttled += [value / _NANOSECONDS for value in _values(cpu, "cpu.stat", "throttled_time")]
        if throttled:
            yield Sample(CGROUP_THROTTLED, labels, sum(throttled))
        # These two are counted for all groups above as well.
        for killed in (
            *_values(unified[:1], "memory.events", "oom_kill"),
            *_values(memory[:1], "memory.oom_control", "oom_kill"),
        ):
            yield Sample(CGROUP_OOM_KILLS, labels, killed)
        for used in (
            *_numbers(unified[:1], "memory.current"),
            *_numbers(memory[:1], "memory.usage_in_bytes"),
        ):
            yield Sample(CGROUP_MEMORY, labels, used)
        for resource in ("cpu", "io", "memory") if unified else ():
            for line in (files.read_text(unified[0] / f"{resource}.pressure") or "").splitlines():
                tasks, _, fields = line.partition(" ")
                total = fields.rpartition("total=")[2]
                if total.isdecimal():
                    yield Sample(CGROUP_PRESSURE, (*labels, resource, tasks), int(total) / _MICROSECONDS)
        if processors := [limit for group in (*unified, *cpu) if (limit := _processors(group)) is not None]:
            yield Sample(CGROUP_CPU_LIMIT, labels, min(processors))
        bounds = (*_numbers(unified, "memory.max"), *_numbers(memory, "memory.limit_in_bytes"))
        if limits := [limit for limit in bounds if limit < _NO_LIMIT]:
            yield Sample(CGROUP_MEMORY_LIMIT, labels, min(limits))

    def _groups(self, pid: int, controller: str) -> list[Path]:
        """Return the process's group in a hierarchy and those above it; none where it is not seen."""
        group = processes.control_group(self._procfs, self._sysfs, pid, controller)
        top = self._root / controller
        return [] if group is None else [each for each in (group, *group.parents) if each.is_relative_to(top)]


def _processors(group: Path) -> float | None:
    quota, _, period = (files.read_text(group / "cpu.max") or "").partition(" ")
    if not quota:
        quota, period = (files.read_text(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _numbers(groups: list[Path], name: str) -> list[int]:
    return [value for group in groups if (value := files.read_number(group / name)) is not None]


def _values(groups: list[Path], name: str, key: str) -> list[int]:
    lines = (line.partition(" ") for group in groups for line in (files.read_text(group / name) or "").splitlines())
    return [int(value) for found, _, value in lines if found == key and value.isdecimal()]


ENTRY = Entry(
    "what the limits of its container or job cost each rank (control groups)",
    (CGROUP_THROTTLED, CGROUP_PRESSURE, CGROUP_CPU_LIMIT, CGROUP_MEMORY, CGROUP_MEMORY_LIMIT, CGROUP_OOM_KILLS),
    lambda options: CgroupCollector(RankFiles(options.state_directory), options.procfs, options.sysfs),
)
