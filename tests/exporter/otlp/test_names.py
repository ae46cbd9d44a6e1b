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


def points(family: Family, labels: tuple[str, ...], value: float) -> list[tuple[dict[str, str], float]]:
    """Return the points that a sample is."""
    return list(name_of(family).points(family, labels, value))


def test_points() -> None:
    """A label is the attribute of the conventions, an up of 0 a failed state, an XID a type of error."""
    up = Family("gpu_up", "gauge", "", ("uuid",))
    gpu = {"hw.id": "GPU-1", "hw.type": "gpu"}
    assert points(up, ("GPU-1",), 1) == [({**gpu, "hw.state": "failed"}, 0), ({**gpu, "hw.state": "ok"}, 1)]
    assert points(up, ("GPU-1",), 0) == [({**gpu, "hw.state": "failed"}, 1), ({**gpu, "hw.state": "ok"}, 0)]
    xid = Family("gpu_xid_errors_total", "counter", "", ("uuid", "xid"))
    assert points(xid, ("GPU-1", "79"), 2) == [({**gpu, "error.type": "xid_79"}, 2)]
    processors = Family("host_cpu_seconds_total", "counter", "", ("host_name", "mode"))
    assert points(processors, ("n", "irq"), 1) == [({"host.name": "n", "cpu.mode": "interrupt"}, 1)]
    link = Family("host_infiniband_receive_bytes_total", "counter", "", ("host_name", "device", "port"))
    assert points(link, ("n", "mlx5_0", "1"), 5) == [
        (
            {
                "host.name": "n",
                "device": "mlx5_0",
                "port": "1",
                "hw.id": "mlx5_0/1",
                "hw.type": "network",
                "network.io.direction": "receive",
            },
            5,
        )
    ]
