"""A toy model bare, with laggard's hooks, and with OpenTelemetry recorded in place, in turns of one process.

    python benchmarks/beside.py STYLE MILLISECONDS TURNS       prints one line of JSON

From one process to the next such a step differs by as much as laggard adds to it. So the same model is trained in short
stretches, one with the hooks, one with spans and histograms in place, and one bare; the stretches that stand side by
side are compared. What threads do in the background falls on all alike, and medians of steps leave it out. With
DistributedDataParallel both ranks take the same turns.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import perf_counter_ns, sleep

import loop
import torch
from switch import Switch, typical
from torch.utils.data import DataLoader, TensorDataset

from laggard import _process

#: Steps of a stretch, and those before them that warm caches up and are not counted.
STEPS = 100
UNCOUNTED = 20
VARIANTS = ("bare", "laggard", "inline")
BATCH = 32


def trainer(style: str, milliseconds: float) -> Callable[[str], float]:
    """Return a function that makes a step in one way and returns its microseconds."""
    torch.manual_seed(0)
    model, width = loop.model_of(milliseconds)
    trained, batches = loop.in_style(style, model), loop.STYLES[style]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(20_000 * BATCH, 1).expand(-1, width))
    phases = dict.fromkeys(VARIANTS, nullcontext) | {"inline": loop.inline(model)[0]}

    def endless() -> Iterator[Iterator[list[torch.Tensor]]]:
        while True:
            loader = DataLoader(data, batch_size=BATCH)
            yield from itertools.repeat(iter(loader), len(loader) // batches)

    loaders = endless()

    def train(variant: str) -> float:
        phase, loader = phases[variant], next(loaders)
        began = perf_counter_ns()
        with phase("step"):
            loop.train(phase, trained, optimizer, loader, batches)
        return (perf_counter_ns() - began) / 1000

    return train


def main() -> None:
    """Train and print."""
    style, milliseconds, turns = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    loop.export_nowhere()
    _process.instrument()
    with loop.ranks(style):
        print(json.dumps(compare(trainer(style, milliseconds), turns)))


def compare(train: Callable[[str], float], turns: int) -> dict[str, float]:
    """Return the microseconds of a bare step, and what is added to it, each with what its median varies by."""
    process = _process.current()
    assert process is not None
    # With a pause in which the drain finds the outermost modules, and does what it does once.
    for _ in range(3):
        for _ in range(400):
            train("bare")
        sleep(1.2)
    switch = Switch(process)

    def stretch(variant: str) -> float:
        switch.turn(variant == "laggard")
        before = process.recorder.backwards
        taken = [train(variant) for _ in range(UNCOUNTED + STEPS)]
        assert (process.recorder.backwards > before) == (variant == "laggard")
        return statistics.median(taken[UNCOUNTED:])

    bare: list[float] = []
    added: dict[str, list[float]] = {"laggard": [], "inline": []}
    for number in range(turns):
        # Who comes first changes, so that a trend cancels.
        first = number % len(VARIANTS)
        found = {variant: stretch(variant) for variant in (*VARIANTS[first:], *VARIANTS[:first])}
        bare.append(found["bare"])
        for variant, values in added.items():
            values.append(found[variant] - found["bare"])
    result: dict[str, float] = {"step_us": round(statistics.median(bare), 1), "turns": turns}
    for variant, values in added.items():
        result[f"{variant}_us"], result[f"{variant}_error_us"] = typical(values)
    return result


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAGGARD_STATE_DIR"] = folder
        os.environ["LAGGARD_RUN"] = "bench"
        main()
