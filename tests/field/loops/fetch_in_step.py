"""nanochat: a step fetches the next batch after backward, before the update, and may begin with an evaluation.

`loader`: batches come from a loader. `hand`: from a generator of the script's own.
"""

from __future__ import annotations

import sys

import torch

from tests.field.parts import loader, network, sample, sgd
from tests.field.stopwatch import Stopwatch


def main(kind: str) -> None:
    """Train twelve steps of two batches, with two optimizers."""
    watch = Stopwatch()
    model = network()
    optimizers = [sgd(model.body), sgd(model.head)]
    if kind == "loader":
        batches = watch.iterator(loader(40))
    else:
        batches = (torch.stack([sample(2 * index), sample(2 * index + 1)]) for index in range(40))
    validation = loader(3)
    batch = watch.fetch(batches)
    for step in range(12):
        if step % 5 == 0:
            model.eval()
            with watch("evaluation"), torch.no_grad():
                for evaluated in validation:
                    model(evaluated)
                for _ in range(3):
                    model(batch)
            model.train()
        loss = torch.zeros(())
        for _micro in range(2):
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean() / 2
            with watch("backward"):
                loss.backward()
            batch = watch.fetch(batches)
        for optimizer in optimizers:
            with watch("optimizer"):
                optimizer.step()
        model.zero_grad()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
