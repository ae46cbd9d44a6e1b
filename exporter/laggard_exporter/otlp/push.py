"""Sends the facts by OTLP, once an interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from importlib import import_module

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from laggard.version import __version__
from laggard_exporter.collection import Collection
from laggard_exporter.gpus.conventions import GPU_UP
from laggard_exporter.logs import LogOnce
from laggard_exporter.otlp.gpus import Gpus
from laggard_exporter.otlp.names import Name, name_of
from laggard_exporter.otlp.settings import Settings
from laggard_exporter.samples import Grouped

_logger = logging.getLogger(__name__)


class Pusher:
    """Collects and sends in a thread of its own, from :meth:`start` to the end of the process.

    A receiver that does not answer costs its own data and nothing else.
    """

    def __init__(self, collection: Collection, host: str, exporter: MetricExporter, interval: float) -> None:
        self._collection = collection
        self._exporter = exporter
        self._interval = interval
        self._started_ns = time.time_ns()
        # The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
        facts = {"service.name": "laggard-exporter", "service.version": __version__, "host.name": host}
        self._resource = Resource(facts).merge(OTELResourceDetector().detect())
        self._log = LogOnce(_logger)

    def start(self) -> None:
        """Send now, and then once an interval."""
        threading.Thread(target=self._work, name="otlp", daemon=True).start()

    def push(self) -> None:
        """Collect and send once."""
        data = metrics_data(self._collection.samples(), self._resource, self._started_ns)
        if self._exporter.export(data) is not MetricExportResult.SUCCESS:  # pyright: ignore[reportUnknownMemberType] - untyped there
            self._log(logging.WARNING, "OTLP: the receiver did not take what was sent; the next push tries again")

    def _work(self) -> None:
        due = time.monotonic()
        while True:
            try:
                self.push()
            except Exception as error:  # a push must not end those after it
                self._log(logging.ERROR, f"OTLP: a push failed: {type(error).__name__}: {error}")
            # A slow push is not made up for.
            due = max(due + self._interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def make_pusher(collection: Collection, host: str, settings: Settings) -> Pusher:
    """Return what pushes the collection. Raises :class:`ImportError` where OpenTelemetry's exporter is missing."""
    make: Callable[[], MetricExporter] = import_module(settings.exporter).OTLPMetricExporter
    return Pusher(collection, host, make(), settings.interval)


def metrics_data(collected: Iterable[Grouped], resource: Resource, started_ns: int) -> MetricsData:
    """Return the samples as OpenTelemetry's SDK hands them to an exporter."""
    now = time.time_ns()
    described: dict[str, tuple[Name, str, list[NumberDataPoint]]] = {}

    def add(name: Name, text: str, attributes: dict[str, str], value: float) -> None:
        # Several families may be one metric: a metric that comes twice would be an error.
        described.setdefault(name.name, (name, text, []))[2].append(NumberDataPoint(attributes, started_ns, now, value))

    for samples in collected:
        gpus = Gpus(samples)
        for family, series in samples.items():
            # Its state says it over OTLP.
            if family.name != GPU_UP.name:
                name = name_of(family)
                for labels, value in series.items():
                    add(name, family.help, gpus.described(name, name.attributes(family, labels)), value)
        for name, text, attributes, value in gpus.points():
            add(name, text, gpus.described(name, attributes), value)
    scope = InstrumentationScope("laggard_exporter", __version__)
    metrics = [_metric(name, text, points) for name, text, points in described.values()]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(name: Name, text: str, points: list[NumberDataPoint]) -> Metric:
    data = (
        Gauge(points)
        if name.kind == "gauge"
        else Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=name.kind == "counter")
    )
    return Metric(name.name, text, name.unit, data)
