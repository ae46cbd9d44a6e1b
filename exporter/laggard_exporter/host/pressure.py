"""Collector ``pressure``: time in which the host's tasks waited for processors, memory or disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from laggard_exporter.entry import Entry
from laggard_exporter.host.families import family
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Sample

PRESSURE = family(
    "pressure_seconds_total",
    "counter",
    "Time in which tasks waited for the resource: some of them, or all that were not idle (full). "
    "Source: /proc/pressure. Full is not defined for the processors of a whole host.",
    "resource",
    "tasks",
)

RESOURCES = ("cpu", "io", "memory", "irq")

_MICROSECONDS = 1_000_000


class PressureCollector:
    """Yields the totals of ``/proc/pressure``, which are as exact as the kernel's; its averages are left out."""

    name = "pressure"

    def __init__(self, procfs: Path, host: str) -> None:
        self._folder = procfs / "pressure"
        self._host = host

    def collect(self) -> Iterator[Sample]:
        """Yield the totals. Raises :class:`ValueError` for a file that is none of the kernel's."""
        found = False
        for resource in RESOURCES:
            try:
                text = (self._folder / resource).read_text(encoding="ascii")
            except OSError:
                continue
            found = True
            for line in text.splitlines():
                tasks, _, fields = line.partition(" ")
                total = fields.rpartition(" total=")[2]
                if tasks not in {"some", "full"} or not total.isdecimal():
                    raise ValueError(f"{self._folder / resource}: a line must be about pressure, got {line!r}")
                # The kernel writes zeros there, but no host can be all waiting for its processors.
                if (resource, tasks) != ("cpu", "full"):
                    yield Sample(PRESSURE, (self._host, resource, tasks), int(total) / _MICROSECONDS)
        if not found:
            raise UnsupportedError(
                f"{self._folder} says nothing: a kernel from 4.20 on, booted with psi=1, counts pressure"
            )


ENTRY = Entry(
    "time in which tasks waited for processors, memory or disks",
    (PRESSURE,),
    lambda options: PressureCollector(options.procfs, options.host),
)
