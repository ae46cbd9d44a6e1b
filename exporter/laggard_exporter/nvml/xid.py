"""XID errors from both places that tell them: NVML's events and the kernel log.

Either may miss some: events are not told to a process that started later, the log may not be readable. Neither tells
one twice, so the larger count of the two is the count, and none is counted double.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache, lru_cache

from laggard_exporter.gpus import conventions as names
from laggard_exporter.kernel_log import KernelLog
from laggard_exporter.logs import LogOnce
from laggard_exporter.samples import Sample

# After NVIDIA's list of XID errors. Critical: the GPU or its memory needs a reset or a repair.
CRITICAL = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
WARNING = frozenset({94})
APPLICATION = frozenset({13, 31, 43, 45, 63, 92})

_MESSAGE = re.compile(
    r"^NVRM: Xid \((?:PCI:)?(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})[^)]*\): "
    r"(?P<xid>[0-9]{1,4})\b"
)

_logger = logging.getLogger(__name__)


@cache
def tier(xid: int) -> str:
    """Return how grave an error with this code is."""
    for name, codes in (("critical", CRITICAL), ("warning", WARNING), ("application", APPLICATION)):
        if xid in codes:
            return name
    return "other"


@lru_cache(1024)
def address(text: str) -> tuple[int, int, int]:
    """Return domain, bus and device of ``00000000:1B:00.0``, zeros for what is no address."""
    parts = re.split("[:.]", text)
    try:
        domain, bus, device = (int(part, 16) for part in parts[:3])
    except ValueError:
        return (0, 0, 0)
    return domain, bus, device


class XidErrors:
    """Counts errors by GPU and code, for GPUs by their PCI address.

    ``since_boot`` is the kernel's clock, in seconds.
    """

    def __init__(self, log: KernelLog, since_boot: Callable[[], float] = time.monotonic) -> None:
        self._log = log.reader(_MESSAGE)
        self._since_boot = since_boot
        self._say = LogOnce(_logger)
        self.is_log_readable = False
        self._logged: Counter[tuple[tuple[int, int, int], int]] = Counter()
        self._told: Counter[tuple[tuple[int, int, int], int]] = Counter()
        self._newest: defaultdict[tuple[tuple[int, int, int], int], float] = defaultdict(float)

    def report(self, pci: str, xid: int, happened: float) -> None:
        """Count an event of NVML."""
        key = (address(pci), xid)
        self._told[key] += 1
        self._newest[key] = max(self._newest[key], happened)

    def read_log(self) -> None:
        """Count what the kernel log says since the last call."""
        messages = self._log.read()
        self.is_log_readable = not self._log.problem
        if self._log.problem:
            self._say(logging.INFO, f"{self._log.problem}; XID errors come from NVML's events alone")
        booted = time.time() - self._since_boot()
        for match, since_boot, is_old in messages:
            key = ((int(match["domain"], 16), int(match["bus"], 16), int(match["device"], 16)), int(match["xid"]))
            self._newest[key] = max(self._newest[key], booted + since_boot)
            # What was there before the exporter is no error that happened under its eyes.
            if not is_old:
                self._logged[key] += 1

    def samples(self, uuid: str, pci: str) -> Iterator[Sample]:
        """Yield the counters of a GPU, those of the known grave errors from 0, and when each error last happened."""
        place = address(pci)
        seen = {xid for where, xid in self._newest if where == place}
        for xid in sorted(CRITICAL | WARNING | seen):
            labels = (uuid, str(xid), tier(xid))
            count = max(self._logged.get((place, xid), 0), self._told.get((place, xid), 0))
            yield Sample(names.GPU_XID_ERRORS, labels, count)
            if xid in seen:
                yield Sample(names.GPU_XID_LAST_TIMESTAMP, labels, self._newest[place, xid])
