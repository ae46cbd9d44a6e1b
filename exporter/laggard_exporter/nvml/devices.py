"""What never changes of an NVIDIA GPU, and what it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from laggard_exporter.gpus.child_process import Request
from laggard_exporter.gpus.devices import Device
from laggard_exporter.gpus.readings import Call
from laggard_exporter.nvml.library import Nvml
from laggard_exporter.nvml.nvlink import LINK_COUNT, Links
from laggard_exporter.nvml.table import ARCHITECTURES, FACTS

COUNT = Request("nvmlDeviceGetCount")
_HANDLE = "nvmlDeviceGetHandleByIndex"
_UUID = "nvmlDeviceGetUUID"
_FANS = "nvmlDeviceGetNumFans"

#: The functions of nvidia-ml-py that GPUs are found and identified with.
FUNCTIONS = (COUNT.function, _HANDLE, _UUID, _FANS, *(call.function for call in FACTS.values()))


@dataclass
class NvidiaDevice(Device):
    """One GPU of NVIDIA."""

    fans: int = 0
    links: Links = field(default_factory=Links)
    #: Sources that stand in for others which this GPU does not have.
    substitutes: set[Call] = field(default_factory=set[Call])
    #: Whether the performance monitor says that nothing runs while the GPU is busy.
    is_monitor_dead: bool = False


class Identify:
    """Opens and identifies GPUs through ``nvml``."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml

    def __call__(self, index: int, seconds: float | None) -> NvidiaDevice | None:
        """Return the GPU with this index, None where it has no answer. Raises as :meth:`Nvml.queries`."""
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
        device = NvidiaDevice(uuid, (uuid, str(index), *facts.values()), index, facts["pci_bus_id"], fans or 0)
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
