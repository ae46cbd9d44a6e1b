"""One training process for the comparison: a loop, one way to instrument it, and the median time of a step.

    python lab/benchmarks/loop.py VARIANT STYLE MILLISECONDS STEPS

VARIANT is one of the functions named in ``VARIANTS``, STYLE one of ``STYLES``. MILLISECONDS is how long a step takes
about: the width of the model follows from it. STEPS are made at most. It prints a line when it has warmed up; then each
line on standard input is a number of steps, which are made and answered with a line of JSON, so that processes can take
turns. All variants that use OpenTelemetry export to the same exporters, which send nothing. The answer is the median of
a step's processor time on the training thread, and of its time by the clock on the wall. Of the two ranks with
DistributedDataParallel, which are watched in the same way, the first one answers.
"""

# ruff: noqa: PLC0415 - each variant imports what it alone takes

from __future__ import annotations

import atexit
import gc
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
from typing import IO, Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WARMUP = 200
#: The first steps of a turn, which find the caches of others.
UNCOUNTED = 10
LAYERS = 6
#: How the loop trains, and how many batches it takes for a step.
STYLES = {"eager": 1, "compiled": 1, "ddp": 1, "accumulation": 4}
RANKS = 2
#: The port of traceml-ai's aggregator, which is that of all ranks.
AGGREGATOR = "BENCH_AGGREGATOR_PORT"
#: Set where no garbage is collected: a collection takes as long as a step, and comes when it comes.
NO_GARBAGE = "BENCH_NO_GARBAGE_COLLECTION"
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
    from opentelemetry import metrics, trace

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
    from torchtel import PyTorchInstrumentor

    PyTorchInstrumentor().instrument(model=model)
    return nullcontext, nullcontext


def traceml(model: nn.Module) -> tuple[Phase, Phase]:
    """Automatic hooks and its context manager around the step; its aggregator is a process of its own."""
    import traceml_ai

    folder, port = tempfile.mkdtemp(dir=os.environ["LAGGARD_STATE_DIR"]), os.environ[AGGREGATOR]
    if os.environ.get("RANK", "0") == "0":
        command = ["traceml", "serve", "--mode", "summary", "--logs-dir", folder, "--aggregator-port", port]
        command += ["--nproc-per-node", os.environ.get("WORLD_SIZE", "1")]
        aggregator = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(aggregator.kill)
    # Without an aggregator it does nothing at all.
    traceml_ai.init(
        mode="auto",
        logs_dir=folder,
        aggregator_port=int(port),
        connect_timeout_sec=60,
        on_missing_aggregator="raise",
    )
    return nullcontext, lambda _: traceml_ai.trace_step(model)


VARIANTS = {function.__name__: function for function in (bare, laggard, inline, torchtel, traceml)}


def export_nowhere() -> None:
    """Set OpenTelemetry up with exporters that do all but send."""
    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import (
        MetricExporter,
        MetricExportResult,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

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


def in_style(style: str, model: nn.Module) -> Any:
    """Return what a style of training trains of a model."""
    wrap: dict[str, Any] = {"compiled": torch.compile, "ddp": DistributedDataParallel}
    return wrap[style](model) if style in wrap else model


def train(
    phase: Phase, trained: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterator[Any], batches: int = 1
) -> None:
    """Make one step, of one batch or of several whose gradients are added."""
    for _ in range(batches):
        with phase("data"):
            (inputs,) = next(loader)
        with phase("forward"):
            loss = trained(inputs).square().mean() / batches
        with phase("backward"):
            loss.backward()
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


@contextmanager
def ranks(style: str) -> Iterator[list[IO[str]]]:
    """Join the group of ranks where a style has one; yield the inputs of the others, which the first one starts."""
    if style != "ddp":
        yield []
        return
    others: list[subprocess.Popen[str]] = []
    if "RANK" not in os.environ:
        os.environ.update(WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), RANK="0")
        for rank in range(1, RANKS):
            environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, *sys.argv]
            others.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, bufsize=1
                )
            )
    try:
        distributed.init_process_group("gloo")
        yield [other.stdin for other in others if other.stdin]
        for other in others:
            other.communicate(timeout=60)
    finally:
        for other in others:
            other.kill()


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def trainer(variant: str, style: str, milliseconds: float, steps: int) -> Callable[[], tuple[float, float]]:
    """Return a function that makes a step and returns its microseconds: of the thread's processor, and by the clock."""
    model, width = model_of(milliseconds)
    batch, batches = 32 if milliseconds < SHORT else 64, STYLES[style]
    phase, step = VARIANTS[variant](model)
    trained = in_style(style, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn((steps + WARMUP) * batches * batch, 1).expand(-1, width)
    loader = iter(DataLoader(TensorDataset(data), batch_size=batch))

    def make() -> tuple[float, float]:
        began, worked = time.perf_counter_ns(), time.thread_time_ns()
        with step("step"):
            train(phase, trained, optimizer, loader, batches)
        return (time.thread_time_ns() - worked) / 1000, (time.perf_counter_ns() - began) / 1000

    return make


def main() -> None:
    """Train as asked for."""
    variant, style, milliseconds, steps = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    os.environ.setdefault(AGGREGATOR, str(free_port()))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if NO_GARBAGE in os.environ:
        gc.disable()
    if variant in ("laggard", "inline", "torchtel"):
        export_nowhere()
    if variant == "laggard":
        from laggard import _process

        _process.instrument()
    with ranks(style) as others:
        make = trainer(variant, style, milliseconds, steps)
        for _ in range(WARMUP):
            make()
        print("ready", flush=True)
        for line in sys.stdin:
            for other in others:
                other.write(line)
            processor, wall = zip(*[make() for _ in range(int(line))][UNCOUNTED:], strict=True)
            print(json.dumps({"step_us": [statistics.median(processor), statistics.median(wall)]}), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAGGARD_STATE_DIR"] = folder
        os.environ["LAGGARD_RUN"] = "bench"
        main()
