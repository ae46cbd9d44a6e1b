"""Takes steps by hand, in a process that no launcher need have instrumented, and prints what became of its metrics.

The first argument says when the script sets providers of its own: before, after, late, or in a child. Else it
sets none, and has many files open, or nothing that is compiled.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

if sys.argv[1] == "python":
    # As if it could not be imported.
    sys.modules["laggard._native"] = sys.modules["laggard._sigaction"] = None

import laggard
from laggard.shared import environment, statefile

#: Where spans go once the script has a provider of its own.
SPANS = InMemorySpanExporter()


def names(reader: InMemoryMetricReader) -> list[str]:
    """What the script's own reader and exporter see, but for most of laggard's."""
    data = reader.get_metrics_data()
    scopes = [scope for part in data.resource_metrics for scope in part.scope_metrics] if data else []
    found = {metric.name for scope in scopes for metric in scope.metrics}
    found |= {span.name for span in SPANS.get_finished_spans()}
    return sorted(found & {"jobs", "training.steps", "training.step"})


def own_provider(*, everywhere: bool) -> InMemoryMetricReader:
    """Make a provider of the script's own, and count with it."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    if everywhere:
        metrics.set_meter_provider(provider)
        spans = TracerProvider()
        spans.add_span_processor(SimpleSpanProcessor(SPANS))
        trace.set_tracer_provider(spans)
    provider.get_meter("mine").create_counter("jobs").add(1)
    return reader


def train() -> None:
    """Take steps for as long as two drains take."""
    for _ in range(50):
        with laggard.step():
            time.sleep(0.05)


def main() -> None:
    """Train, and print what a reader of the script's own sees and the port that the state file names."""
    when = sys.argv[1]
    if when == "many_files":
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        for _ in range(1100):
            os.open(os.devnull, os.O_RDONLY)
    reader = own_provider(everywhere=True) if when == "before" else None
    if environment.LAGGARD_PROVIDERS not in os.environ:  # which the launcher sets
        laggard.instrument()
    if when == "after":
        reader = own_provider(everywhere=True)
    train()
    if when == "late":
        reader = own_provider(everywhere=True)
        train()
    (path,) = Path(os.environ["LAGGARD_STATE_DIR"]).iterdir()
    if when == "child":
        if child := os.fork():
            os.waitpid(child, 0)
            return
        reader = own_provider(everywhere=False)
    else:
        port = statefile.read(path).facts.metrics_port
        print(json.dumps({"served": bool(port)}))
    if reader:
        print(json.dumps(names(reader)), flush=True)
    if when == "child":
        os._exit(0)


if __name__ == "__main__":
    main()
