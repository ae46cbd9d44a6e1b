"""Instruments of OpenTelemetry for our metrics, each by the meters of one provider or of several."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter, NoOpMeter
from opentelemetry.metrics import _Gauge as Gauge
from opentelemetry.util.types import Attributes

from laggard.shared import environment, metrics


def histogram_of(meters: Sequence[Meter], metric: metrics.Metric) -> Histogram:
    """Return what records into a histogram by each meter."""
    made = [
        meter.create_histogram(
            metric.name,
            unit=metric.unit,
            description=metric.description,
            explicit_bucket_boundaries_advisory=_bounds(metric),
        )
        for meter in _wanted(meters, metric)
    ]
    return made[0] if len(made) == 1 else _Histograms(made, metric)


def counter_of(meters: Sequence[Meter], metric: metrics.Metric) -> Counter:
    """Return what adds to a counter by each meter."""
    made = [
        meter.create_counter(metric.name, unit=metric.unit, description=metric.description)
        for meter in _wanted(meters, metric)
    ]
    return made[0] if len(made) == 1 else _Counters(made, metric)


def gauge_of(meters: Sequence[Meter], metric: metrics.Metric) -> Gauge:
    """Return what sets a gauge by each meter."""
    made = [
        meter.create_gauge(metric.name, unit=metric.unit, description=metric.description)
        for meter in _wanted(meters, metric)
    ]
    return made[0] if len(made) == 1 else _Gauges(made, metric)


class _Histograms(Histogram):
    def __init__(self, each: Sequence[Histogram], metric: metrics.Metric) -> None:
        super().__init__(metric.name)
        self._each = each

    def record(self, amount: float, attributes: Attributes | None = None, context: Context | None = None) -> None:
        for histogram in self._each:
            histogram.record(amount, attributes, context)


class _Counters(Counter):
    def __init__(self, each: Sequence[Counter], metric: metrics.Metric) -> None:
        super().__init__(metric.name)
        self._each = each

    def add(self, amount: float, attributes: Attributes | None = None, context: Context | None = None) -> None:
        for counter in self._each:
            counter.add(amount, attributes, context)


class _Gauges(Gauge):
    def __init__(self, each: Sequence[Gauge], metric: metrics.Metric) -> None:
        super().__init__(metric.name)
        self._each = each

    def set(self, amount: float, attributes: Attributes | None = None, context: Context | None = None) -> None:
        for gauge in self._each:
            gauge.set(amount, attributes, context)


def _wanted(meters: Sequence[Meter], metric: metrics.Metric) -> Sequence[Meter]:
    """Return the meters, or for a metric that the chosen profile leaves out one that makes silent instruments."""
    left_out = _compact() and metric not in metrics.COMPACT
    return [NoOpMeter(metrics.METER_NAME)] if left_out else meters


def _compact() -> bool:
    return environment.choice(environment.LAGGARD_SERIES, "default", "compact") == "compact"


def _bounds(metric: metrics.Metric) -> tuple[float, ...]:
    if _compact():
        return ()
    if environment.choice(environment.LAGGARD_HISTOGRAMS, "default", "full") == "full":
        return metrics.STEP_BOUNDS
    return metric.bounds
