"""The GPUs of the node: which there are, which there were, and what never changes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laggard_exporter.nvml.library import DeviceLostError, Nvml
from laggard_exporter.nvml.table import ARCHITECTURES, FACTS, Call

_COUNT = "nvmlDeviceGetCount"
_HANDLE = "nvmlDeviceGetHandleByIndex"
_UUID = "nvmlDeviceGetUUID"

#: The functions of nvidia-ml-py that GPUs are found and identified with.
FUNCTIONS = (_COUNT, _HANDLE, _UUID, *(call.function for call in FACTS.values()))

#: A GPU that does not answer is asked again after so many seconds: getting a handle takes NVML milliseconds.
RETRY_SECONDS = 30


@dataclass
class Device:
    """One GPU. ``facts`` are the label values of ``gpu_info``; ``handle`` is None while the GPU is lost."""

    uuid: str
    facts: tuple[str, ...]
    handle: Any


class Devices:
    """All GPUs seen since the start: one that is lost or left the enumeration stays, without a handle."""

    def __init__(self, nvml: Nvml, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._known: dict[str, Device] = {}
        self._count: int | None = None
        self._retry_at = 0.0

    def forget_handles(self) -> None:
        """Take every handle for invalid, as after the end of a session."""
        self._count = None
        for device in self._known.values():
            device.handle = None

    def refresh(self) -> tuple[int | None, list[Device]]:
        """Return the number of GPUs that NVML counts, None where it fails, and the known GPUs.

        Raises :class:`~laggard_exporter.nvml.library.SessionLostError`.
        """
        count = self._nvml.query(_COUNT)
        if count is not None:
            answering = sum(device.handle is not None for device in self._known.values())
            if count != self._count or (answering < count and self._clock() >= self._retry_at):
                self._enumerate(count)
        return count, list(self._known.values())

    def _enumerate(self, count: int) -> None:
        self.forget_handles()
        for index in range(count):
            try:
                device = self._device(index)
            except DeviceLostError:
                continue
            if device is not None:
                self._known[device.uuid] = device
        self._count = count
        self._retry_at = self._clock() + RETRY_SECONDS

    def _device(self, index: int) -> Device | None:
        handle = self._nvml.query(_HANDLE, index)
        uuid = None if handle is None else self._nvml.query(_UUID, handle)
        if uuid is None:
            return None
        facts = (self._fact(handle, label, call) for label, call in FACTS.items())
        return Device(uuid, (uuid, str(index), *facts), handle)

    def _fact(self, handle: Any, label: str, call: Call) -> str:
        answer = self._nvml.query(call.function, handle, *call.arguments)
        if answer is None:
            return ""
        if call.attribute:
            answer = getattr(answer, call.attribute)
        return _FACT_TEXTS.get(label, _text)(answer)


def _text(answer: str | bytes) -> str:
    # Text inside a structure arrives as bytes.
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def _architecture(number: int) -> str:
    return ARCHITECTURES.get(number, "")


def _numa_node(mask: Any) -> str:
    nodes = [node for node in range(64) if mask[0] >> node & 1]
    # On a machine that can not tell, all nodes are equally near.
    return str(nodes[0]) if len(nodes) == 1 else ""


_FACT_TEXTS: dict[str, Callable[[Any], str]] = {"arch": _architecture, "numa_node": _numa_node}
