"""Stands in for a rank's report and keeps what hooks measure as plain data."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from laggard._part import Part
    from laggard._report import Report
    from laggard.shared.metrics import Metric


class Measured:
    """The values handed to ``Report.measure``, by metric name and attribute values."""

    def __init__(self) -> None:
        self.values: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)

    def measure(self, metric: Metric, value: float, *attributes: str) -> None:
        """Keep one value."""
        assert len(attributes) == len(metric.attributes)
        self.values[(metric.name, *attributes)].append(value)

    def collective(self, operation: str, duration_ns: int) -> None:
        """Keep the duration of a collective."""
        self.values["training.collective.duration", operation].append(duration_ns * 1e-9)

    def collective_io(self, operation: str, size: int) -> None:
        """Keep the bytes of collectives."""
        self.values["training.collective.io", operation].append(size)


def measure(hook: Part) -> dict[tuple[str, ...], list[float]]:
    """What a hook reports now."""
    measured = Measured()
    hook.report(cast("Report", measured))
    return dict(measured.values)
