"""XID errors from both places that tell them: NVML's events and the kernel log.

Either may miss some: events are not told to a process that started later, the log may not be readable. Neither tells
one twice, so the larger count of the two is the count, and none is counted double.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from laggard_exporter import gpu_conventions as names
from laggard_exporter.logs import LogOnce
from laggard_exporter.samples import Sample

KERNEL_LOG = Path("/dev/kmsg")

# After NVIDIA's list of XID errors. Critical: the GPU or its memory needs a reset or a repair.
CRITICAL = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
WARNING = frozenset({94})
APPLICATION = frozenset({13, 31, 43, 45, 63, 92})

#: A flood of messages is read over several scrapes.
MOST_RECORDS = 5000

_MESSAGE = re.compile(
    rb"NVRM: Xid \((?:PCI:)?(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})[^)]*\): "
    rb"(?P<xid>\d{1,4})\b"
)
_MICROSECONDS = 1_000_000

_logger = logging.getLogger(__name__)


def tier(xid: int) -> str:
    """Return how grave an error with this code is."""
    for name, codes in (("critical", CRITICAL), ("warning", WARNING), ("application", APPLICATION)):
        if xid in codes:
            return name
    return "other"


def address(text: str) -> tuple[int, int, int]:
    """Return domain, bus and device of ``00000000:1B:00.0``, zeros for what is no address."""
    parts = re.split("[:.]", text)
    try:
        domain, bus, device = (int(part, 16) for part in parts[:3])
    except ValueError:
        return (0, 0, 0)
    return domain, bus, device


class Message(NamedTuple):
    """An XID error in the kernel log, of the GPU at a PCI address."""

    address: tuple[int, int, int]
    xid: int
    time: float
    is_old: bool
    """Whether it was there before the log was opened."""


class KernelLog:
    """Reads the XID errors of a log in the format of /dev/kmsg.

    ``since_boot`` is the kernel's clock, in seconds.
    """

    def __init__(self, path: Path, since_boot: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._since_boot = since_boot
        self._descriptor: int | None = None
        self._rest = b""
        self._log = LogOnce(_logger)

    @property
    def is_readable(self) -> bool:
        """Whether the log is open."""
        return self._descriptor is not None

    def read(self) -> list[Message]:
        """Return the errors that came since the last call; at the first call those of the whole log, as old."""
        is_old = self._descriptor is None
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                self._log(logging.INFO, f"{self._path}: {error.strerror}; XID errors come from NVML's events alone")
                return []
        most = sys.maxsize if is_old else MOST_RECORDS
        records = self._records(self._descriptor, most)
        return [message for record in records if (message := self._parse(record, is_old))]

    def _records(self, descriptor: int, most: int) -> Iterator[bytes]:
        for _ in range(most):
            try:
                data = os.read(descriptor, 1 << 13)
            except BlockingIOError:
                return
            except BrokenPipeError:  # the kernel needed the room of records that were not read yet
                continue
            except OSError as error:
                self._log(logging.WARNING, f"{self._path}: {error.strerror}")
                return
            if not data:
                return
            # One record at a time from the kernel, any piece of the text from a file.
            *records, self._rest = (self._rest + data).split(b"\n")
            yield from records

    def _parse(self, record: bytes, is_old: bool) -> Message | None:  # noqa: FBT001 - a private function
        head, _, text = record.partition(b";")
        match = _MESSAGE.match(text)
        if match is None:
            return None
        microseconds = 0
        with contextlib.suppress(IndexError, ValueError):
            microseconds = int(head.split(b",")[2])
        happened = time.time() - self._since_boot() + microseconds / _MICROSECONDS
        place = (int(match["domain"], 16), int(match["bus"], 16), int(match["device"], 16))
        return Message(place, int(match["xid"]), happened, is_old)


class XidErrors:
    """Counts errors by GPU and code, for GPUs by their PCI address."""

    def __init__(self, log: KernelLog) -> None:
        self.log = log
        self._logged: Counter[tuple[tuple[int, int, int], int]] = Counter()
        self._told: Counter[tuple[tuple[int, int, int], int]] = Counter()
        self._newest: defaultdict[tuple[tuple[int, int, int], int], float] = defaultdict(float)

    def tell(self, pci: str, xid: int, happened: float) -> None:
        """Count an event of NVML."""
        key = (address(pci), xid)
        self._told[key] += 1
        self._newest[key] = max(self._newest[key], happened)

    def read_log(self) -> None:
        """Count what the kernel log says since the last call."""
        for message in self.log.read():
            key = (message.address, message.xid)
            self._newest[key] = max(self._newest[key], message.time)
            # What was there before the exporter is no error that happened under its eyes.
            if not message.is_old:
                self._logged[key] += 1

    def samples(self, uuid: str, pci: str) -> Iterator[Sample]:
        """Yield the counters of a GPU, those of the known grave errors from 0, and when each error last happened."""
        place = address(pci)
        seen = {xid for where, xid in self._newest if where == place}
        for xid in sorted(CRITICAL | WARNING | seen):
            labels = (uuid, str(xid), tier(xid))
            count = max(self._logged[place, xid], self._told[place, xid])
            yield Sample(names.GPU_XID_ERRORS, labels, count)
            if xid in seen:
                yield Sample(names.GPU_XID_LAST_TIMESTAMP, labels, self._newest[place, xid])
