"""A long step with laggard's hooks and without them, in turns of one process: for what processes differ by anyway.

    python benchmarks/turns.py MILLISECONDS TURNS       prints one line of JSON

From one process to the next, a step of 30 ms differs by more than what is asked for here. So the hooks are taken out
and put back between stretches of steps of one process, and each stretch is compared with the one beside it: changes
of the machine strike both. Beside the clock on the wall stands the training thread's processor time, which leaves out
what other threads and programs take.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import loop
import torch
import torch.optim.optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

from laggard import _process

#: Steps of a stretch; the first of each refills caches and is not counted.
STEPS = 8
#: What a batch holds; the model's width gives a step its length.
BATCH = 64
#: Steps before the first stretch, among them those after which rare work of the drain has been done once.
WARMUP = 90


def batches(width: int) -> Iterator[torch.Tensor]:
    """Yield batches without end."""
    dataset = TensorDataset(torch.randn(400 * BATCH, 1).expand(-1, width))
    while True:
        for (inputs,) in DataLoader(dataset, batch_size=BATCH):
            yield inputs


class Switch:
    """Turns all hooks of this process off and on."""

    def __init__(self, process: Any) -> None:
        self._hooks = list(process._hooks)
        # torch calls these without asking laggard.
        self._tables = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        self._kept = [dict(table) for table in self._tables]

    def turn(self, on: bool) -> None:  # noqa: FBT001  # a switch
        """Put the hooks in place, or take them out."""
        for hook in self._hooks:
            hook.suspend(not on)
        for table, kept in zip(self._tables, self._kept, strict=True):
            table.clear()
            if on:
                table.update(kept)


def main() -> None:
    """Train and print."""
    milliseconds, turns = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loop.export_nowhere()
    _process.instrument()
    process = _process.current()
    assert process is not None
    model, width = loop.model_of(milliseconds)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    supply = batches(width)

    def train() -> tuple[int, int]:
        """Return the nanoseconds of a step, by the clock and of this thread's processor."""
        began, worked = time.perf_counter_ns(), time.thread_time_ns()
        model(next(supply)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter_ns() - began, time.thread_time_ns() - worked

    for _ in range(WARMUP):
        train()
    counted = process.recorder.self_time_ns
    for _ in range(WARMUP):
        train()
    own = (process.recorder.self_time_ns - counted) / WARMUP / 1000
    switch = Switch(process)

    def stretch(on: bool) -> list[float]:  # noqa: FBT001  # a switch
        switch.turn(on)
        train()
        return [statistics.median(values) / 1000 for values in zip(*(train() for _ in range(STEPS)), strict=True)]

    bare: list[float] = []
    added: list[list[float]] = [[], []]
    for number in range(turns):
        # Who comes first changes, so that a trend cancels.
        first = number % 2 == 0
        found = {on: stretch(on) for on in (first, not first)}
        bare.append(found[False][0])
        for differences, ours, theirs in zip(added, found[True], found[False], strict=True):
            differences.append(ours - theirs)
    result: dict[str, Any] = {
        "step_us": round(statistics.median(bare), 1),
        "turns": turns,
        "self_time_us": round(own, 1),
    }
    for name, differences in zip(("wall", "processor"), added, strict=True):
        middle = statistics.median(differences)
        spread = 1.48 * statistics.median(abs(value - middle) for value in differences)
        result[f"added_{name}_us"] = round(middle, 1)
        result[f"added_{name}_error_us"] = round(1.25 * spread / turns**0.5, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    # glibc would give the memory of each step back to the kernel and ask for it again: a third of the step's time, and
    # most of its noise.
    kept = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
    if not kept.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **kept})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAGGARD_STATE_DIR"] = folder
        os.environ["LAGGARD_RUN"] = "bench"
        main()
