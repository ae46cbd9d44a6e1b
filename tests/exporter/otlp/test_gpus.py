"""What the conventions say of a GPU that no single sample does."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource

from laggard_exporter.gpus import conventions as names
from laggard_exporter.otlp.push import metrics_data
from laggard_exporter.samples import Grouped, Sample, grouped

FACTS = {"index": "0", "name": "NVIDIA H100", "serial": "1650", "vbios": "96.00", "arch": "hopper"}


def gpu(**more: float) -> Grouped:
    """Return the samples of a GPU that is well, with others by the name of their constant."""
    info = tuple({"uuid": "GPU-1", **FACTS}.get(label, "") for label in names.GPU_INFO.labels)
    driver = tuple({"driver": "580.1"}.get(label, "") for label in names.GPU_DRIVER_INFO.labels)
    return grouped(
        [
            Sample(names.GPU_INFO, info, 1),
            Sample(names.GPU_DRIVER_INFO, driver, 1),
            Sample(names.GPU_UP, ("GPU-1",), more.pop("GPU_UP", 1)),
            *(Sample(getattr(names, name), ("GPU-1",), value) for name, value in more.items()),
        ]
    )


def sent(samples: Grouped) -> dict[str, list[tuple[dict[str, object], float]]]:
    """Return attributes and value of each point that is sent, by metric."""
    (resource,) = metrics_data([samples], Resource({}), 0).resource_metrics
    metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
    points: dict[str, Any] = {each.name: each.data.data_points for each in metrics}
    return {name: [(dict(point.attributes or {}), point.value) for point in of] for name, of in points.items()}


def state(samples: Grouped) -> str:
    """Return the one state of the GPU that is 1; all four are there."""
    points = {str(attributes["hw.state"]): value for attributes, value in sent(samples)["hw.status"]}
    assert points.keys() == {"ok", "degraded", "predicted_failure", "failed"}
    (found,) = (name for name, value in points.items() if value == 1)
    assert sum(points.values()) == 1
    return found


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "ok"),
        ({"GPU_ROW_REMAP_PENDING": 0, "GPU_ROW_REMAP_FAILED": 0}, "ok"),
        ({"GPU_ROW_REMAP_PENDING": 1}, "degraded"),
        ({"GPU_RETIRED_PAGES_PENDING": 1}, "degraded"),
        ({"GPU_ROW_REMAP_PENDING": 1, "GPU_ROW_REMAP_FAILED": 1}, "predicted_failure"),
        ({"GPU_ECC_SRAM_THRESHOLD_EXCEEDED": 1}, "predicted_failure"),
        ({"GPU_UP": 0, "GPU_ROW_REMAP_FAILED": 1}, "failed"),
    ],
)
def test_state(more: dict[str, float], expected: str) -> None:
    """A GPU has the gravest state that its facts allow, and one alone."""
    assert state(gpu(**more)) == expected


@pytest.mark.parametrize(("action", "expected"), [("none", "ok"), ("unknown", "ok"), ("drain_reset", "degraded")])
def test_recovery_action(action: str, expected: str) -> None:
    """A recovery action degrades a GPU, one that asks for nothing does not."""
    actions = {(("GPU-1", each)): float(each == action) for each in ("none", "unknown", "reset", "drain_reset")}
    assert state({**gpu(), names.GPU_RECOVERY_ACTION: actions}) == expected


def test_whose_it_is() -> None:
    """Points of the conventions say vendor, model, serial number and driver; what they have no name for does not."""
    points = sent(gpu(GPU_POWER=700, GPU_POWER_LIMIT=700))
    identity = {
        "hw.id": "GPU-1", "hw.vendor": "NVIDIA", "hw.model": "NVIDIA H100", "hw.serial_number": "1650",
        "hw.driver_version": "580.1",
    }  # fmt: skip
    assert points["hw.power"] == [({**identity, "hw.type": "gpu"}, 700)]
    assert points["gpu.power_limit"] == [({"hw.id": "GPU-1"}, 700)]
    assert all(identity.items() <= attributes.items() for attributes, _ in points["hw.status"])


def test_whose_it_is_of_amd() -> None:
    """A GPU that AMD's library tells of is AMD's."""
    points = sent({**gpu(GPU_POWER=700), names.AMD_SMI.available: {(): 1.0}})
    assert {attributes["hw.vendor"] for attributes, _ in points["hw.power"]} == {"AMD"}


def test_what_is_unknown_is_no_attribute() -> None:
    """A GPU without serial number or driver has neither attribute."""
    samples = {
        family: {tuple("" if each in ("1650", "580.1") else each for each in labels): 1.0 for labels in series}
        for family, series in gpu().items()
    }
    (attributes, _), *_ = sent(samples)["hw.status"]
    assert attributes.keys() == {"hw.id", "hw.type", "hw.state", "hw.vendor", "hw.model"}


def test_memory_utilization() -> None:
    """The share of its memory is there where both figures are, and not of a GPU that has none of its own."""
    assert [
        value for _, value in sent(gpu(GPU_MEMORY_USED=20, GPU_MEMORY_CAPACITY=80))["hw.gpu.memory.utilization"]
    ] == [0.25]
    assert "hw.gpu.memory.utilization" not in sent(gpu(GPU_MEMORY_USED=20))
    assert "hw.gpu.memory.utilization" not in sent(gpu(GPU_MEMORY_USED=0, GPU_MEMORY_CAPACITY=0))
