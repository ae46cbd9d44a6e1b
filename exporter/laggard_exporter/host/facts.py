"""Collector ``host``: processors and memory, also where no node_exporter runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from laggard_exporter import files
from laggard_exporter.entry import Entry
from laggard_exporter.host.families import family
from laggard_exporter.samples import Sample

CPU_COUNT = family("logical_cpus", "gauge", "Logical processors that are online. Source: /proc/stat.")
CPU_TIME = family(
    "cpu_seconds_total", "counter", "Time of all processors by what they did. Source: /proc/stat.", "mode"
)
MEMORY_CAPACITY = family("memory_capacity_bytes", "gauge", "Memory of the host. Source: /proc/meminfo MemTotal.")
MEMORY_AVAILABLE = family(
    "memory_available_bytes",
    "gauge",
    "Memory that can be had without swapping. Source: /proc/meminfo MemAvailable.",
)
SWAP_CAPACITY = family("swap_capacity_bytes", "gauge", "Swap space. Source: /proc/meminfo SwapTotal.")
SWAP_FREE = family("swap_free_bytes", "gauge", "Swap space not in use. Source: /proc/meminfo SwapFree.")
SHARED_MEMORY_CAPACITY = family(
    "shared_memory_capacity_bytes",
    "gauge",
    "Size of /dev/shm, through which data workers hand over batches; node_exporter leaves it out.",
)
SHARED_MEMORY_FREE = family(
    "shared_memory_free_bytes", "gauge", "What is free in /dev/shm; data workers that find none die with a bus error."
)

#: Columns of the first line of /proc/stat. Time of guests is in user and nice already.
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

_MEMORY = {
    "MemTotal": MEMORY_CAPACITY,
    "MemAvailable": MEMORY_AVAILABLE,
    "SwapTotal": SWAP_CAPACITY,
    "SwapFree": SWAP_FREE,
}

_KIBIBYTE = 1024


class HostCollector:
    """Yields processor time, memory and what is left of the shared memory at ``shared_memory``."""

    name = "host"

    def __init__(self, procfs: Path, host: str, *, shared_memory: Path = Path("/dev/shm")) -> None:  # noqa: S108 - asked, not written
        self._procfs = procfs
        self._host = host
        self._shared_memory = shared_memory
        self._ticks = os.sysconf("SC_CLK_TCK")

    def collect(self) -> Iterator[Sample]:
        """Yield the facts, as far as procfs has them: mounted with ``subset=pid``, it has processes alone."""
        yield from self._processors()
        yield from self._memory()
        try:
            status = os.statvfs(self._shared_memory)
        except OSError:
            return
        yield Sample(SHARED_MEMORY_CAPACITY, (self._host,), status.f_blocks * status.f_frsize)
        yield Sample(SHARED_MEMORY_FREE, (self._host,), status.f_bavail * status.f_frsize)

    def _processors(self) -> Iterator[Sample]:
        lines = [line.split() for line in (files.read_text(self._procfs / "stat") or "").splitlines()]
        of_all, *of_each = [line for line in lines if line and line[0].startswith("cpu")] or [[]]
        for mode, ticks in zip(MODES, of_all[1:], strict=False):
            yield Sample(CPU_TIME, (self._host, mode), int(ticks) / self._ticks)
        if of_each:
            yield Sample(CPU_COUNT, (self._host,), len(of_each))

    def _memory(self) -> Iterator[Sample]:
        for line in (files.read_text(self._procfs / "meminfo") or "").splitlines():
            name, _, value = line.partition(":")
            if name in _MEMORY:
                yield Sample(_MEMORY[name], (self._host,), int(value.split()[0]) * _KIBIBYTE)


ENTRY = Entry(
    "processors, memory and shared memory",
    (
        CPU_COUNT,
        CPU_TIME,
        MEMORY_CAPACITY,
        MEMORY_AVAILABLE,
        SWAP_CAPACITY,
        SWAP_FREE,
        SHARED_MEMORY_CAPACITY,
        SHARED_MEMORY_FREE,
    ),
    lambda options: HostCollector(options.procfs, options.host),
)
