"""Processes of one job that train without a process group.

`hogwild`: on shared parameters. `folds`: one after the other. `sweep`: side by side.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import multiprocessing

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def train(number: int, shared: Any = None) -> None:
    """Train twelve steps; on shared parameters losses depend on chance, so they are not noted."""
    watch = Stopwatch(str(number))
    model = network() if shared is None else shared
    optimizer = sgd(model)
    for batch in watch.batches(loader(12)):
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss if shared is None else 0.0)
    watch.done()


def main(kind: str) -> None:
    """Start two processes."""
    context: Any = multiprocessing.get_context("spawn" if kind == "hogwild" else "fork")
    shared = (network().share_memory(),) if kind == "hogwild" else ()
    processes = [context.Process(target=train, args=(number, *shared)) for number in range(2)]
    for process in processes:
        process.start()
        if kind == "folds":
            process.join()
    for process in processes:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in processes))


if __name__ == "__main__":
    main(sys.argv[1])
