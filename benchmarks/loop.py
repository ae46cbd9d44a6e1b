"""One training process for the comparison: a loop, one way to instrument it, and the median time of a step.

    python benchmarks/loop.py VARIANT STYLE MILLISECONDS STEPS       prints one line of JSON

VARIANT is one of the functions named in ``VARIANTS``, STYLE ``eager`` or ``compiled``. MILLISECONDS is how long a step
takes about: the width of the model follows from it. All variants that use OpenTelemetry export to the same exporters,
which send nothing. A step is timed from one batch to the next by a clock that all variants have alike.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WARMUP = 200
LAYERS = 6
#: Below so many milliseconds a step is that of a toy model.
SHORT = 5

Phase = Callable[[str], AbstractContextManager[Any]]


def bare(_model: nn.Module) -> tuple[Phase, Phase]:
    """Nothing at all."""
    return nullcontext, nullcontext


def laggard(_model: nn.Module) -> tuple[Phase, Phase]:
    """Zero code, as under opentelemetry-instrument."""
    return nullcontext, nullcontext


def inline(_model: nn.Module) -> tuple[Phase, Phase]:
    """A span and a histogram recorded in place, for each phase and for the step: OpenTelemetry by its manual."""
    from opentelemetry import metrics, trace  # noqa: PLC0415

    tracer = trace.get_tracer("bench")
    duration = metrics.get_meter("bench").create_histogram("training.phase.duration", unit="s")

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        with tracer.start_as_current_span(name):
            began = time.perf_counter()
            try:
                yield
            finally:
                duration.record(time.perf_counter() - began, {"training.phase": name})

    return timed, timed


def torchtel(model: nn.Module) -> tuple[Phase, Phase]:
    """Zero code after one call with the model: a span for each phase, in place."""
    from torchtel import PyTorchInstrumentor  # noqa: PLC0415

    PyTorchInstrumentor().instrument(model=model)
    return nullcontext, nullcontext


def traceml(model: nn.Module) -> tuple[Phase, Phase]:
    """Automatic hooks and its context manager around the step; its aggregator is a process of its own."""
    import traceml_ai  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    folder = tempfile.mkdtemp(dir=os.environ["LAGGARD_STATE_DIR"])
    command = ["traceml", "serve", "--mode", "summary", "--logs-dir", folder, "--aggregator-port", str(port)]
    aggregator = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(aggregator.kill)
    # Without an aggregator it does nothing at all.
    traceml_ai.init(
        mode="auto",
        logs_dir=folder,
        aggregator_port=port,
        connect_timeout_sec=60,
        on_missing_aggregator="raise",
    )
    return nullcontext, lambda _: traceml_ai.trace_step(model)


VARIANTS = {function.__name__: function for function in (bare, laggard, inline, torchtel, traceml)}


def export_nowhere() -> None:
    """Set OpenTelemetry up with exporters that do all but send."""
    from opentelemetry import metrics, trace  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415
        MetricExporter,
        MetricExportResult,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415

    class Metrics(MetricExporter):
        def export(self, metrics_data: Any, *_: Any, **__: Any) -> MetricExportResult:
            encode_metrics(metrics_data).SerializeToString()
            return MetricExportResult.SUCCESS

        def shutdown(self, *_: Any, **__: Any) -> None: ...

        def force_flush(self, *_: Any) -> bool:
            return True

    class Spans(SpanExporter):
        def export(self, *_: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(Metrics(), 1000)]))
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(BatchSpanProcessor(Spans()))
    trace.set_tracer_provider(tracer_provider)


def model_of(milliseconds: float) -> tuple[nn.Module, int]:
    """Return a model, and the width of its input, whose training step takes about as long."""
    width = 64 if milliseconds < SHORT else 1024
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1)), width


def train(phase: Phase, trained: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterator[Any]) -> None:
    """Make one step."""
    with phase("data"):
        (inputs,) = next(loader)
    with phase("forward"):
        loss = trained(inputs).square().mean()
    with phase("backward"):
        loss.backward()
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Train and print."""
    variant, style, milliseconds, steps = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    extra: dict[str, Any] = {}
    if variant in ("laggard", "inline", "torchtel"):
        export_nowhere()
    if variant == "laggard":
        from laggard import _process  # noqa: PLC0415

        _process.instrument()
    model, width = model_of(milliseconds)
    batch = 32 if milliseconds < SHORT else 64
    phase, step = VARIANTS[variant](model)
    trained = torch.compile(model) if style == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn((steps + WARMUP + 2) * batch, 1).expand(-1, width)
    loader = iter(DataLoader(TensorDataset(data), batch_size=batch))
    times: list[float] = []
    for _ in range(steps + WARMUP):
        began = time.perf_counter()
        with step("step"):
            train(phase, trained, optimizer, loader)
        times.append((time.perf_counter() - began) * 1e6)
    measured = times[WARMUP:]
    if variant == "laggard":
        from laggard import _process  # noqa: PLC0415

        process = _process.current()
        assert process is not None
        extra["self_time_us"] = process.recorder.self_time_ns / 1000 / len(times)
        extra["drain_us"] = _thread_seconds("laggard-drain") * 1e6 / len(times)
    print(json.dumps({"step_us": statistics.median(measured), "mean_us": statistics.fmean(measured), **extra}))


def _thread_seconds(name: str) -> float:
    """Return the processor time of one of this process's threads, by its name."""
    import threading  # noqa: PLC0415

    ticks = 100
    for thread in threading.enumerate():
        if thread.name == name:
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / ticks
    return 0.0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAGGARD_STATE_DIR"] = folder
        os.environ["LAGGARD_RUN"] = "bench"
        main()
