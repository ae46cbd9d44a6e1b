"""A toy model bare, with laggard's hooks, and with OpenTelemetry recorded in place, in turns of one process.

    python lab/benchmarks/beside.py STYLE MILLISECONDS VARIANT...       VARIANT: bare, laggard, inline

It prints a line when it has warmed up. Then each line on standard input asks for a measurement and is answered with a
line of JSON: ``turns N`` trains in each variant N times, ``alone STEPS`` trains with laggard's hooks.

From one process to the next such a step differs by as much as laggard adds to it, and from one second to the next by
more. What else the machine does changes slowly, so more steps at a stretch do not help. Shorter stretches do, since the
variants then change many times while the machine stays the same. A step is measured in processor time of the training
thread: the clock on the wall also runs while others have the processor and while a rank waits for its peer. A step
before which others had the processor finds cold caches, so the least of a stretch counts: what the hooks add is in
every step. With DistributedDataParallel both ranks take the same turns.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import perf_counter_ns, sleep, thread_time_ns

import loop
import torch
from switch import Switch
from torch.utils.data import DataLoader, TensorDataset

from laggard import _process
from laggard.shared import statefile

#: Steps of a stretch, and those before them that are not counted: the interpreter finds its patched types changed.
STEPS = 10
UNCOUNTED = 2
BATCH = 32
#: Share of more steps before those with the hooks alone: after a pause the drain has other work than it goes on with.
SETTLING = 0.25

Times = tuple[float, float]
"""Microseconds of processor time of the training thread, and by the clock on the wall."""


def trainer(style: str, milliseconds: float, variants: list[str]) -> Callable[[str], Times]:
    """Return a function that makes a step in one way and returns what it took."""
    torch.manual_seed(0)
    model, width = loop.model_of(milliseconds)
    trained, batches = loop.in_style(style, model), loop.STYLES[style]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(20_000 * BATCH, 1).expand(-1, width))
    phases = {variant: loop.inline(model)[0] if variant == "inline" else nullcontext for variant in variants}

    def endless() -> Iterator[Iterator[list[torch.Tensor]]]:
        while True:
            loader = DataLoader(data, batch_size=BATCH)
            yield from itertools.repeat(iter(loader), len(loader) // batches)

    loaders = endless()

    def train(variant: str) -> Times:
        phase, loader = phases[variant], next(loaders)
        began, worked = perf_counter_ns(), thread_time_ns()
        with phase("step"):
            loop.train(phase, trained, optimizer, loader, batches)
        return (thread_time_ns() - worked) / 1000, (perf_counter_ns() - began) / 1000

    return train


class Turns:
    """Trains in one variant after the other.

    Args:
        train: makes a step.
        variants: in which ways.
    """

    def __init__(self, train: Callable[[str], Times], variants: list[str]) -> None:
        process = _process.current()
        assert process is not None
        self._train = train
        self._variants = variants
        self._recorder = process.recorder
        self._turn = 0
        # With a pause in which the drain finds the outermost modules, and does what it does once.
        for _ in range(3):
            for _ in range(400):
                train(variants[0])
            sleep(1.2)
        self._switch = Switch(process)

    def turns(self, number: int) -> dict[str, list[Times]]:
        """Return what a step took in each variant in each turn, the least of a stretch."""
        found: dict[str, list[Times]] = {variant: [] for variant in self._variants}
        for _ in range(number):
            # Who comes first changes, so that a trend cancels.
            first = self._turn % len(self._variants)
            self._turn += 1
            for variant in (*self._variants[first:], *self._variants[:first]):
                found[variant].append(self._stretch(variant))
        return found

    def _stretch(self, variant: str) -> Times:
        self._switch.turn(variant == "laggard")
        before = self._recorder.backwards
        taken = [self._train(variant) for _ in range(UNCOUNTED + STEPS)]
        assert (self._recorder.backwards > before) == (variant == "laggard")
        processor, wall = zip(*taken[UNCOUNTED:], strict=True)
        return min(processor), min(wall)

    def alone(self, steps: int) -> dict[str, float]:
        """Train with laggard's hooks; return what a step took of its own, and of the drain's processor."""
        self._switch.turn(on=True)
        for _ in range(int(SETTLING * steps)):
            self._train("laggard")
        before = self._spent()
        for _ in range(steps):
            self._train("laggard")
        self_time, drain, drained = (now - then for now, then in zip(self._spent(), before, strict=True))
        return {"self_time_us": self_time / steps / 1000, "drain_us": drain / drained / 1000}

    def _spent(self) -> tuple[int, int, int]:
        """Return the nanoseconds of the hooks, those of the drain's processor, and the steps that it has seen."""
        drain = next(thread for thread in threading.enumerate() if thread.name == "laggard-drain")
        assert drain.ident is not None
        # The drain works once a second: by the steps that were made, its share would depend on when it worked last.
        assert self._recorder.words is not None
        return (
            self._recorder.self_time_ns,
            time.clock_gettime_ns(time.pthread_getcpuclockid(drain.ident)),
            self._recorder.words[statefile.STEPS],
        )


def main() -> None:
    """Train as asked for."""
    style, milliseconds, variants = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    loop.export_nowhere()
    _process.instrument()
    with loop.ranks(style) as others:
        turns = Turns(trainer(style, milliseconds, variants), variants)
        print("ready", flush=True)
        for line in sys.stdin:
            for other in others:
                other.write(line)
            what, number = line.split()
            print(json.dumps(getattr(turns, what)(int(number))), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAGGARD_STATE_DIR"] = folder
        os.environ["LAGGARD_RUN"] = "bench"
        main()
