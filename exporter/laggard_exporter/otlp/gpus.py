"""What the conventions say of a GPU that no single sample of ours does: its state, how full it is, and whose it is.

https://opentelemetry.io/docs/specs/semconv/hardware/gpu/, in development.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from laggard.shared.attributes import Attribute
from laggard_exporter.gpus import conventions as names
from laggard_exporter.otlp.names import GPU, Name
from laggard_exporter.samples import Family, Grouped

STATUS = Name("hw.status", "1", "updown")
STATUS_HELP = (
    "1 for the state of the GPU, 0 for all others. failed: it is lost. predicted_failure: a row of its memory could "
    "not be replaced, or its SRAM had more errors than it should be used with. degraded: it waits for a repair or a "
    "recovery action."
)
MEMORY_UTILIZATION = Name("hw.gpu.memory.utilization", "1", "gauge")
MEMORY_UTILIZATION_HELP = "Share of the memory that is used."

#: ``hw.state``, the gravest first, and what puts a GPU into it where it is 1.
_STATES: Mapping[str, tuple[Family, ...]] = {
    "predicted_failure": (names.GPU_ROW_REMAP_FAILED, names.GPU_ECC_SRAM_THRESHOLD_EXCEEDED),
    "degraded": (
        names.GPU_ROW_REMAP_PENDING, names.GPU_RETIRED_PAGES_PENDING, names.GPU_REPAIR_PENDING,
        names.GPU_RECOVERY_ACTION,
    ),
}  # fmt: skip

#: Recovery actions that ask for nothing.
_NO_ACTION = {"none", "unknown"}

#: Labels of ``gpu_info`` by attribute.
_FACTS = {"hw.model": "name", "hw.serial_number": "serial"}


class Gpus:
    """The GPUs of one collection."""

    def __init__(self, samples: Grouped) -> None:
        self._samples = {family.name: series for family, series in samples.items()}
        drivers = [_by_label(names.GPU_DRIVER_INFO, labels)["driver"] for labels in self._series(names.GPU_DRIVER_INFO)]
        vendor = "AMD" if names.AMD_SMI.available in samples else "NVIDIA"
        shared = {"hw.vendor": vendor, **({"hw.driver_version": drivers[0]} if drivers and drivers[0] else {})}
        self._identity: dict[str, dict[str, str]] = {}
        for labels in self._series(names.GPU_INFO):
            said = _by_label(names.GPU_INFO, labels)
            known = {attribute: said[label] for attribute, label in _FACTS.items() if said[label]}
            self._identity[said["uuid"]] = {**shared, **known}

    def described(self, name: Name, attributes: dict[str, str]) -> dict[str, str]:
        """Return a point's attributes with those that say whose it is, where it is of a GPU and of the conventions."""
        of_gpu = self._identity.get(attributes.get(Attribute.HARDWARE_ID, "")) if name.name.startswith("hw.") else None
        return {**attributes, **of_gpu} if of_gpu else attributes

    def points(self) -> Iterator[tuple[Name, str, dict[str, str], float]]:
        """Yield name, meaning, attributes and value of each point that no sample is by itself."""
        for (uuid,), up in self._series(names.GPU_UP).items():
            state = self._state(uuid) if up else "failed"
            for each in ("ok", *_STATES, "failed"):
                yield STATUS, STATUS_HELP, {**_of(uuid), **GPU, "hw.state": each}, float(each == state)
        capacities = self._series(names.GPU_MEMORY_CAPACITY)
        for labels, used in self._series(names.GPU_MEMORY_USED).items():
            if capacity := capacities.get(labels):
                yield MEMORY_UTILIZATION, MEMORY_UTILIZATION_HELP, _of(labels[0]), used / capacity

    def _state(self, uuid: str) -> str:
        for state, families in _STATES.items():
            for family in families:
                for labels, value in self._series(family).items():
                    if labels[0] == uuid and value == 1 and not _NO_ACTION & set(labels[1:]):
                        return state
        return "ok"

    def _series(self, family: Family) -> dict[tuple[str, ...], float]:
        return self._samples.get(family.name, {})


def _of(uuid: str) -> dict[str, str]:
    return {Attribute.HARDWARE_ID: uuid}


def _by_label(family: Family, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(family.labels, labels, strict=True))
