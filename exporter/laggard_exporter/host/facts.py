"""Collector ``host``: processors and memory, also where no node_exporter runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from laggard_exporter.host import conventions
from laggard_exporter.samples import Sample

#: Columns of the first line of /proc/stat. Time of guests is in user and nice already.
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

_MEMORY = {
    "MemTotal": conventions.MEMORY_CAPACITY,
    "MemAvailable": conventions.MEMORY_AVAILABLE,
    "SwapTotal": conventions.SWAP_CAPACITY,
    "SwapFree": conventions.SWAP_FREE,
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
        """Yield the facts. Raises :class:`OSError` where procfs is none."""
        yield from self._processors()
        yield from self._memory()
        try:
            status = os.statvfs(self._shared_memory)
        except OSError:
            return
        yield Sample(conventions.SHARED_MEMORY_CAPACITY, (self._host,), status.f_blocks * status.f_frsize)
        yield Sample(conventions.SHARED_MEMORY_FREE, (self._host,), status.f_bavail * status.f_frsize)

    def _processors(self) -> Iterator[Sample]:
        lines = [line.split() for line in (self._procfs / "stat").read_text(encoding="ascii").splitlines()]
        for mode, ticks in zip(MODES, lines[0][1:], strict=False):
            yield Sample(conventions.CPU_TIME, (self._host, mode), int(ticks) / self._ticks)
        count = sum(line[0].startswith("cpu") for line in lines if line) - 1
        yield Sample(conventions.CPU_COUNT, (self._host,), count)

    def _memory(self) -> Iterator[Sample]:
        for line in (self._procfs / "meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name in _MEMORY:
                yield Sample(_MEMORY[name], (self._host,), int(value.split()[0]) * _KIBIBYTE)
