"""Memory of the rank: on its device, in its process, and what both are allowed.

Nothing is patched. The drain asks about once a second: the allocator of a device that is in use already, which
neither starts the device nor waits for it, and ``/proc`` for the process. Of several devices in one process the one on
which most is reserved counts.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laggard._hooks.backends import backends_in_use
from laggard._hooks.base import Hook
from laggard._part import DRAINS_A_SCRAPE, Host
from laggard.shared import metrics

if TYPE_CHECKING:
    from laggard._report import Report

_ROOT = Path("/")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Reports after which the busiest device is looked for again.
_RESCAN = 16
#: A limit of version 1 that stands for none is the largest whole page below 2**63.
_NO_LIMIT = 1 << 60

_USAGE = {
    "device_allocated": "allocated_bytes.all.current",
    "device_reserved": "reserved_bytes.all.current",
    "device_peak": "allocated_bytes.all.peak",
}
_COUNTERS = (
    (metrics.MEMORY_ALLOCATION_RETRIES, "num_alloc_retries"),
    (metrics.MEMORY_OUT_OF_MEMORY, "num_ooms"),
)


class MemoryHook(Hook):
    """Reads the memory of the process and the limit on it."""

    name = "memory"
    share = DRAINS_A_SCRAPE
    resting_share = 16

    def __init__(self, host: Host, root: Path = _ROOT) -> None:
        super().__init__(host)
        self._root = root
        self._limit_files: list[Path] | None = None

    def report(self, report: Report) -> None:
        """Report usage and limit."""
        pages = _read(self._root / "proc/self/statm").split()
        if pages:
            report.measure(metrics.MEMORY_USAGE, int(pages[1]) * _PAGE_BYTES, "host_rss")
        if self._limit_files is None:
            self._limit_files = _limit_files(self._root)
        # That of a parent group binds too. Read every time: an orchestrator may move it.
        limits = [int(text) for text in map(_read, self._limit_files) if text.isdigit()]
        limit = min((limit for limit in limits if limit < _NO_LIMIT), default=0)
        if limit:
            report.measure(metrics.MEMORY_LIMIT, limit, "host")


class DeviceMemoryHook(Hook):
    """Reads the allocator of the device that the process uses most."""

    name = "device_memory"
    share = DRAINS_A_SCRAPE
    resting_share = 16

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._module: Any = None
        self._index = 0
        self._age = 0
        self._counted: dict[str, int] = {}

    def report(self, report: Report) -> None:
        """Report the device, if one is in use."""
        if self._module is None or self._age >= _RESCAN:
            self._find()
        if self._module is None:
            return
        self._age += 1
        stats: Mapping[str, int] = self._module.memory_stats(self._index)
        for kind, key in _USAGE.items():
            if key in stats:
                report.measure(metrics.MEMORY_USAGE, stats[key], kind)
        report.measure(metrics.MEMORY_LIMIT, self._module.get_device_properties(self._index).total_memory, "device")
        for metric, key in _COUNTERS:
            if key in stats:
                last, self._counted[key] = self._counted.get(key, 0), stats[key]
                # The script may have set the allocator's counters back.
                report.measure(metric, stats[key] - last if stats[key] >= last else stats[key])

    def _find(self) -> None:
        reserved: list[tuple[int, int, Any]] = []
        for module in backends_in_use():
            if hasattr(module, "memory_stats"):
                for index in range(module.device_count()):
                    amount = module.memory_stats(index).get(_USAGE["device_reserved"], 0)
                    reserved.append((amount, index, module))
        amount, index, module = max(reserved, key=operator.itemgetter(0), default=(0, 0, None))
        if amount and (module, index) != (self._module, self._index):
            self._module, self._index = module, index
            self._counted = {}
        self._age = 0


def _limit_files(root: Path) -> list[Path]:
    """Return the files that limit the memory of this process, in both versions of control groups."""
    files: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, which is not there; its own group is then the mount itself.
        group = mount / path.lstrip("/")
        files += [folder / name for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return [file for file in files if file.exists()]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
