"""Collector ``disk``: what the disks did and how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from laggard_exporter.entry import Entry
from laggard_exporter.filters import Filter
from laggard_exporter.host.families import family
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Sample

DISK_OPERATIONS = family(
    "disk_operations_total",
    "counter",
    "Operations that the disk completed. Source: /proc/diskstats.",
    "device",
    "direction",
)
DISK_OPERATION_TIME = family(
    "disk_operation_seconds_total",
    "counter",
    "Time that completed operations took, waiting included; over the operations it is their mean latency. "
    "Source: /proc/diskstats.",
    "device",
    "direction",
)
DISK_BYTES = family(
    "disk_bytes_total", "counter", "Bytes that were read and written. Source: /proc/diskstats.", "device", "direction"
)
DISK_BUSY_TIME = family(
    "disk_io_seconds_total", "counter", "Time in which the disk had work. Source: /proc/diskstats.", "device"
)

#: The kernel counts sectors of this many bytes, whatever the disk's are.
SECTOR = 512

_MILLISECONDS = 1000

#: Places in a line of /proc/diskstats, from the device's name on: operations, sectors and milliseconds.
_DIRECTIONS = {"read": (1, 3, 4), "write": (5, 7, 8)}
_BUSY = 10


class DiskCollector:
    """Yields ``/proc/diskstats`` for the disks that ``devices`` admits."""

    name = "disk"

    def __init__(self, procfs: Path, host: str, devices: Filter) -> None:
        self._path = procfs / "diskstats"
        self._host = host
        self._devices = devices

    def collect(self) -> Iterator[Sample]:
        """Yield the disks' counters. Raises :class:`ValueError` for a line that is no disk's."""
        try:
            lines = self._path.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            raise UnsupportedError(f"{self._path} does not exist") from None
        for line in lines:
            try:
                fields = line.split()[2:]
                samples = list(self._disk(fields)) if self._devices.admits(fields[0]) else []
            except (IndexError, ValueError):
                raise ValueError(f"{self._path}: a line must be about a disk, got {line!r}") from None
            yield from samples

    def _disk(self, fields: list[str]) -> Iterator[Sample]:
        device = fields[0]
        for direction, (operations, sectors, milliseconds) in _DIRECTIONS.items():
            labels = (self._host, device, direction)
            yield Sample(DISK_OPERATIONS, labels, int(fields[operations]))
            yield Sample(DISK_BYTES, labels, int(fields[sectors]) * SECTOR)
            yield Sample(DISK_OPERATION_TIME, labels, int(fields[milliseconds]) / _MILLISECONDS)
        yield Sample(DISK_BUSY_TIME, (self._host, device), int(fields[_BUSY]) / _MILLISECONDS)


ENTRY = Entry(
    "operations, bytes and latency of disks",
    (DISK_OPERATIONS, DISK_OPERATION_TIME, DISK_BYTES, DISK_BUSY_TIME),
    lambda options: DiskCollector(options.procfs, options.host, options.devices["disk"]),
)
