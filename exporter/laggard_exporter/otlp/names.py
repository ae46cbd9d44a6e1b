"""Which name a metric has over OTLP.

The conventions for hardware and systems (https://opentelemetry.io/docs/specs/semconv/, hw.* and system.*, all in
development) come first. What they have no name for keeps ours: dots for the first underscores, and a unit in place of
the unit's name, so that a backend that makes Prometheus names of it gets the name that a scrape has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from laggard.shared.attributes import Attribute
from laggard.shared.names import prometheus_label, prometheus_name
from laggard.shared.process_metrics import PROCESS_METRICS
from laggard_exporter.samples import Family

#: What a value is over OTLP: a counter, a sum that may fall, or a gauge.
Kind = Literal["counter", "updown", "gauge"]


@dataclass(frozen=True)
class Name:
    """Name, unit and attributes over OTLP."""

    name: str
    unit: str
    kind: Kind
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Attributes by our labels, where they differ from :data:`ATTRIBUTES`."""
    fixed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Attributes that say what our name says."""
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of attributes by our labels' values, where they differ."""
    prefix: str = ""
    """Stands before the value of ``error.type``."""

    def attributes(self, family: Family, values: tuple[str, ...]) -> dict[str, str]:
        """Return the attributes of the point that a sample is."""
        labels = dict(zip(family.labels, values, strict=True))
        attributes = {
            self.labels.get(label) or ATTRIBUTES.get(label, label): self.values.get(text, text)
            for label, text in labels.items()
        }
        attributes |= self.fixed
        if self.prefix:
            attributes["error.type"] = self.prefix + attributes["error.type"]
        if "device" in labels and "port" in labels:
            attributes["hw.id"] = f"{labels['device']}/{labels['port']}"
        return attributes


#: Attributes by our labels.
ATTRIBUTES = {
    **{prometheus_label(name): name for key, name in vars(Attribute).items() if key.isupper()},
    "uuid": Attribute.HARDWARE_ID,
}

GPU = {"hw.type": "gpu"}
_NETWORK = {"hw.type": "network"}
_DISK = {"device": "system.device", "direction": "disk.io.direction"}


def _direction(direction: str) -> dict[str, str]:
    return {"network.io.direction": direction}


SEMANTIC: dict[str, Name] = {
    "gpu_utilization_ratio": Name("hw.gpu.utilization", "1", "gauge", fixed={"hw.gpu.task": "general"}),
    "gpu_encoder_utilization_ratio": Name("hw.gpu.utilization", "1", "gauge", fixed={"hw.gpu.task": "encoder"}),
    "gpu_decoder_utilization_ratio": Name("hw.gpu.utilization", "1", "gauge", fixed={"hw.gpu.task": "decoder"}),
    "gpu_memory_capacity_bytes": Name("hw.gpu.memory.limit", "By", "updown"),
    "gpu_memory_used_bytes": Name("hw.gpu.memory.usage", "By", "updown"),
    "gpu_energy_joules_total": Name("hw.energy", "J", "counter", fixed=GPU),
    "gpu_power_watts": Name("hw.power", "W", "gauge", fixed=GPU),
    "gpu_temperature_celsius": Name("hw.temperature", "Cel", "gauge", {"sensor": "hw.sensor_location"}, GPU),
    "gpu_ecc_volatile_errors_total": Name("hw.errors", "{error}", "counter", {"severity": "error.type"}, GPU),
    "gpu_xid_errors_total": Name("hw.errors", "{error}", "counter", {"xid": "error.type"}, GPU, prefix="xid_"),
    "gpu_pcie_receive_bytes_total": Name("hw.gpu.io", "By", "counter", fixed=_direction("receive")),
    "gpu_pcie_transmit_bytes_total": Name("hw.gpu.io", "By", "counter", fixed=_direction("transmit")),
    "host_cpu_seconds_total": Name(
        "system.cpu.time", "s", "counter", {"mode": "cpu.mode"}, values={"irq": "interrupt"}
    ),
    "host_logical_cpus": Name("system.cpu.logical.count", "{cpu}", "updown"),
    "host_memory_capacity_bytes": Name("system.memory.limit", "By", "updown"),
    "host_memory_available_bytes": Name("system.memory.linux.available", "By", "updown"),
    "host_disk_bytes_total": Name("system.disk.io", "By", "counter", _DISK),
    "host_disk_operations_total": Name("system.disk.operations", "{operation}", "counter", _DISK),
    "host_disk_operation_seconds_total": Name("system.disk.operation_time", "s", "counter", _DISK),
    "host_disk_io_seconds_total": Name("system.disk.io_time", "s", "counter", _DISK),
    "host_infiniband_link_up": Name("hw.network.up", "1", "updown", fixed=_NETWORK),
    "host_infiniband_rate_bytes_per_second": Name("hw.network.bandwidth.limit", "By/s", "updown", fixed=_NETWORK),
    "host_infiniband_receive_bytes_total": Name(
        "hw.network.io", "By", "counter", fixed=_NETWORK | _direction("receive")
    ),
    "host_infiniband_transmit_bytes_total": Name(
        "hw.network.io", "By", "counter", fixed=_NETWORK | _direction("transmit")
    ),
    "host_infiniband_receive_packets_total": Name(
        "hw.network.packets", "{packet}", "counter", fixed=_NETWORK | _direction("receive")
    ),
    "host_infiniband_transmit_packets_total": Name(
        "hw.network.packets", "{packet}", "counter", fixed=_NETWORK | _direction("transmit")
    ),
    "host_infiniband_errors_total": Name("hw.errors", "{error}", "counter", {"error": "error.type"}, _NETWORK),
}

#: The ranks' metrics have names in the contract.
_CONTRACT = {prometheus_name(metric): (metric.name, metric.unit) for metric in PROCESS_METRICS}

_UNITS = {
    "_seconds": "s",
    "_bytes": "By",
    "_joules": "J",
    "_watts": "W",
    "_celsius": "Cel",
    "_hertz": "Hz",
}

_PREFIXES = {
    "gpu_": "gpu.",
    "host_": "host.",
    "laggard_exporter_": "laggard.exporter.",
    "training_process_": "training.process.",
}


def name_of(family: Family) -> Name:
    """Return the name over OTLP of a family."""
    if family.name in SEMANTIC:
        return SEMANTIC[family.name]
    if family.name in _CONTRACT:
        name, unit = _CONTRACT[family.name]
        return Name(name, unit, family.kind)
    base, unit = family.name.removesuffix("_total") if family.kind == "counter" else family.name, ""
    for suffix, symbol in _UNITS.items():
        if base.endswith(suffix):
            base, unit = base.removesuffix(suffix), symbol
    if base.endswith("_ratio"):
        base = f"{base.removesuffix('_ratio')}.ratio"
    for prefix, dotted in _PREFIXES.items():
        if base.startswith(prefix):
            base = dotted + base.removeprefix(prefix)
    return Name(base, unit, family.kind)
