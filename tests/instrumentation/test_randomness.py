"""Telemetry takes nothing from the random numbers of the training process."""

from __future__ import annotations

import random
import sys

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider

from laggard._hooks import randomness
from tests.instrumentation.inside import instrumented
from tests.support.otlp import Receiver


def use_telemetry(endpoint: str) -> None:
    """Export metrics, begin spans, and count inside of one of them."""
    exporter = OTLPMetricExporter(f"{endpoint}/v1/metrics")
    meters = MeterProvider([PeriodicExportingMetricReader(exporter)], shutdown_on_exit=False)
    counter = meters.get_meter("test").create_counter("test")
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("test"):
        counter.add(1)
        assert meters.force_flush()
    meters.shutdown()


def test_spans_and_exports_leave_the_random_numbers_as_they_are() -> None:
    """Whoever seeded Python's generator draws the same numbers; uninstrument leaves no generator of ours behind."""
    with Receiver() as receiver:
        endpoint = receiver.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
        with instrumented():
            before = random.getstate()
            use_telemetry(endpoint)
            assert random.getstate() == before
            assert receiver.series("test")
        use_telemetry(endpoint)
        assert random.getstate() != before
    held = [getattr(sys.modules.get(name), "random", random) for name in randomness._MODULES]
    assert held == [random] * len(held)


def test_a_generator_that_a_module_has_already_is_left_to_it() -> None:
    """Who gave OpenTelemetry a generator of its own, as a test does for ids that repeat, keeps it."""
    own = random.Random(0)
    module = sys.modules["opentelemetry.sdk.trace.id_generator"]
    vars(module)["random"] = own
    try:
        with instrumented():
            assert vars(module)["random"] is own
    finally:
        vars(module)["random"] = random
