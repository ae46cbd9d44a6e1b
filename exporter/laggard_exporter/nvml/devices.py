"""The GPUs of the node: which there are, which there were, and what never changes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from laggard_exporter.nvml.child_process import Request
from laggard_exporter.nvml.library import OPEN_SECONDS, DeviceLostError, Nvml
from laggard_exporter.nvml.nvlink import LINK_COUNT, Links
from laggard_exporter.nvml.table import ARCHITECTURES, FACTS, Call

_COUNT = "nvmlDeviceGetCount"
_HANDLE = "nvmlDeviceGetHandleByIndex"
_UUID = "nvmlDeviceGetUUID"
_FANS = "nvmlDeviceGetNumFans"

#: The functions of nvidia-ml-py that GPUs are found and identified with.
FUNCTIONS = (_COUNT, _HANDLE, _UUID, _FANS, *(call.function for call in FACTS.values()))

#: A GPU that does not answer is asked again after so many seconds: getting a handle takes NVML milliseconds.
RETRY_SECONDS = 30
#: One whose calls hang is asked again sooner, for it may have been the node that had no time.
HANG_RETRY_SECONDS = 10
#: Each time costs a process: it is asked ever more seldom, up to this.
LONGEST_RETRY_SECONDS = 600

_logger = logging.getLogger(__name__)


@dataclass
class Device:
    """One GPU. ``facts`` are the label values of ``gpu_info``; ``index`` is None while the GPU is lost."""

    uuid: str
    facts: tuple[str, ...]
    index: int | None
    pci: str = ""
    fans: int = 0
    links: Links = field(default_factory=Links)
    #: Sources that stand in for others which this GPU does not have.
    substitutes: set[Call] = field(default_factory=set[Call])
    #: Whether the performance monitor says that nothing runs while the GPU is busy.
    is_monitor_dead: bool = False


@dataclass
class _Quarantine:
    """A GPU whose calls hang is left alone until ``retry_at``, for ``seconds``."""

    seconds: float
    retry_at: float


class Devices:
    """All GPUs seen since the start: one that is lost or left the enumeration stays, without an index."""

    def __init__(self, nvml: Nvml, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._known: dict[str, Device] = {}
        #: The GPU that each index was last of: what happened to it may be reported after it was lost.
        self.last: dict[int, Device] = {}
        self._owners: dict[str, str] = {}
        self._shared: set[str] = set()
        self._quarantine: dict[int, _Quarantine] = {}
        self._count: int | None = None
        self._retry_at = 0.0

    def forget_handles(self) -> None:
        """Take every handle for invalid, as after the end of a session."""
        self._count = None
        for device in self._known.values():
            device.index = None

    def quarantine(self, index: int) -> None:
        """Leave the GPU with this index alone for a while."""
        last = self._quarantine.get(index)
        seconds = min(last.seconds * 2, LONGEST_RETRY_SECONDS) if last else HANG_RETRY_SECONDS
        self._quarantine[index] = _Quarantine(seconds, self._clock() + seconds)

    def answered(self, index: int) -> None:
        """Note that the GPU with this index does not hang."""
        self._quarantine.pop(index, None)

    @property
    def quarantined(self) -> int:
        """Number of GPUs that are left alone because their calls hang."""
        return len(self._quarantine)

    @property
    def indices(self) -> list[int]:
        """The indices of the GPUs that can be asked."""
        return [device.index for device in self._known.values() if device.index is not None]

    def refresh(self) -> tuple[int | None, list[Device], bool]:
        """Return the number of GPUs that NVML counts, None where it fails, the known GPUs, and whether they changed.

        Raises :class:`~laggard_exporter.nvml.library.SessionLostError`, and what a call that hangs raises.
        """
        count = self._nvml.query(Request(_COUNT))
        enumerated = False
        if count is not None:
            missing = len(self.indices) < count and self._clock() >= self._retry_at
            due = any(self._clock() >= quarantine.retry_at for quarantine in self._quarantine.values())
            if count != self._count or missing or due:
                self._enumerate(count)
                enumerated = True
        return count, list(self._known.values()), enumerated

    def _enumerate(self, count: int) -> None:
        self.forget_handles()
        self._retry_at = self._clock() + RETRY_SECONDS
        for index in range(count):
            quarantine = self._quarantine.get(index)
            if quarantine is not None and self._clock() < quarantine.retry_at:
                continue
            # A GPU that is known to hang is not waited for as one that is slow to begin with.
            seconds = OPEN_SECONDS if quarantine is None else None
            try:
                device = self._device(index, seconds)
            except DeviceLostError:
                continue
            if device is not None:
                device = self._apart(device)
                self._known[device.uuid] = self.last[index] = device
        self._count = count

    def _apart(self, device: Device) -> Device:
        """Return a device under a UUID of its own: some boards have the same one twice."""
        owner = self._owners.setdefault(device.uuid, device.pci)
        if owner == device.pci:
            return device
        known = self._known[device.uuid]
        if device.uuid not in self._shared and known.index is None:
            # It was moved.
            self._owners[device.uuid] = device.pci
            return device
        uuid = f"{device.uuid}-{device.pci}"
        if device.uuid not in self._shared:
            self._shared.add(device.uuid)
            _logger.warning("GPUs %s and %s have the same UUID; the second one is shown as %s", owner, device.pci, uuid)
        return replace(device, uuid=uuid, facts=(uuid, *device.facts[1:]))

    def _device(self, index: int, seconds: float | None) -> Device | None:
        if self._nvml.query(Request(_HANDLE, index, (index,)), seconds) is None:
            return None
        fact_calls = [Request(call.function, index, call.arguments) for call in FACTS.values()]
        requests = [Request(_UUID, index), Request(_FANS, index), LINK_COUNT.on(index), *fact_calls]
        uuid, fans, links, *answers = self._nvml.queries(requests, seconds)
        if uuid is None:
            return None
        facts = {
            label: _fact(label, call, answer) for (label, call), answer in zip(FACTS.items(), answers, strict=True)
        }
        device = Device(uuid, (uuid, str(index), *facts.values()), index, facts["pci_bus_id"], fans or 0)
        device.links = Links.probe(self._nvml, index, links, seconds)
        return device


def _fact(label: str, call: Call, answer: Any) -> str:
    if answer is None:
        return ""
    return _FACT_TEXTS.get(label, _text)(answer if call.attribute is None else answer[call.attribute])


def _text(answer: str | bytes) -> str:
    # Text inside a structure arrives as bytes.
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def _architecture(number: int) -> str:
    return ARCHITECTURES.get(number, "")


def _numa_node(mask: list[int]) -> str:
    nodes = [node for node in range(64) if mask[0] >> node & 1]
    # On a machine that cannot tell, all nodes are equally near.
    return str(nodes[0]) if len(nodes) == 1 else ""


_FACT_TEXTS: dict[str, Callable[[Any], str]] = {"arch": _architecture, "numa_node": _numa_node}
