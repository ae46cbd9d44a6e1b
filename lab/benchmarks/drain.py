"""Processor time that each part of the drain takes, once for twenty steps, with data workers.

python lab/benchmarks/drain.py [WORKERS]          prints JSON, microseconds for each turn (`step`: for each step)
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laggard
from laggard import _identity, _process
from laggard._partition import StepPartition
from laggard._report import Report
from laggard.prometheus import PrometheusReader

STEPS_A_TURN, BATCHES = 20, 1000


def main() -> None:
    """Train, and stand in for the drain every twenty steps."""
    torch.set_num_threads(1)
    metrics.set_meter_provider(MeterProvider([PrometheusReader()]))
    _process.instrument()
    process = _process.current()
    assert process is not None
    process._settled = True  # no drain of its own
    identity = _identity.from_environment(0, 1)
    report = Report(identity, identity.facts(0))
    partition = StepPartition(warmup_steps=0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    loader = DataLoader(TensorDataset(torch.randn(4 * BATCHES, 64)), batch_size=4, num_workers=workers)
    took: Counter[str] = Counter()

    def timed(name: str, call: Callable[..., Any], *arguments: Any) -> None:
        began = time.thread_time_ns()
        call(*arguments)
        took[name] += time.thread_time_ns() - began

    for number, (batch,) in enumerate(loader, 1):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        laggard.log(loss=loss, samples=4)
        if number % STEPS_A_TURN:
            continue
        steps = partition.feed(process.recorder.drain())
        timed("step", report.steps, steps)
        timed("recent", report.recent, steps[-1])
        for hook in process._parts:
            timed(hook.name, hook.guarded(hook.steps_ended), steps)
            timed(hook.name, hook.guarded(hook.report), report)
    turns = BATCHES // STEPS_A_TURN
    times = {name: took[name] / 1e3 / (partition.steps if name == "step" else turns) for name in took}
    print(json.dumps({name: round(value, 1) for name, value in sorted(times.items(), key=lambda item: -item[1])}))


if __name__ == "__main__":
    main()
