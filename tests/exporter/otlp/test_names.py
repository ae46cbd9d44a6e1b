"""Names over OTLP: the semantic conventions' where they have one, else names that become ours again."""

from __future__ import annotations

import pytest

from laggard_exporter.collectors import FAMILIES
from laggard_exporter.otlp.names import SEMANTIC, name_of
from laggard_exporter.samples import Family

#: What a collector appends to a name in Prometheus, by unit.
UNITS = {"s": "seconds", "By": "bytes", "J": "joules", "W": "watts", "Cel": "celsius", "Hz": "hertz"}


def prometheus(family: Family) -> str:
    """Return the name that a collector makes of a family that came by OTLP."""
    name = name_of(family)
    text = name.name.replace(".", "_")
    if name.unit in UNITS and not text.endswith(f"_{UNITS[name.unit]}"):
        text += f"_{UNITS[name.unit]}"
    return f"{text}_total" if name.kind == "counter" else text


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_path_agrees(family: Family) -> None:
    """What the conventions have no name for has the same name in Prometheus on every path."""
    if family.name not in SEMANTIC:
        assert prometheus(family) == family.name
        assert name_of(family).kind == family.kind


def test_one_metric_has_one_kind_and_unit() -> None:
    """Families that are one metric over OTLP agree about kind and unit."""
    found: dict[str, tuple[str, str]] = {}
    for family in FAMILIES:
        name = name_of(family)
        assert found.setdefault(name.name, (name.kind, name.unit)) == (name.kind, name.unit)


def attributes(name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> dict[str, str]:
    """Return the attributes of the point that a sample is."""
    family = Family(name, "gauge", "", labels)
    return name_of(family).attributes(family, values)


def test_attributes() -> None:
    """A label is the attribute of the conventions, an XID a type of error."""
    gpu = {"hw.id": "GPU-1", "hw.type": "gpu"}
    assert attributes("gpu_power_watts", ("uuid",), ("GPU-1",)) == gpu
    assert attributes("gpu_xid_errors_total", ("uuid", "xid"), ("GPU-1", "79")) == {**gpu, "error.type": "xid_79"}
    assert attributes("host_cpu_seconds_total", ("host_name", "mode"), ("n", "irq")) == {
        "host.name": "n",
        "cpu.mode": "interrupt",
    }
    assert attributes("host_infiniband_receive_bytes_total", ("host_name", "device", "port"), ("n", "mlx5_0", "1")) == {
        "host.name": "n",
        "device": "mlx5_0",
        "port": "1",
        "hw.id": "mlx5_0/1",
        "hw.type": "network",
        "network.io.direction": "receive",
    }
