"""Batches that are fetched and not trained on: at the start, as when a run resumes, and those that a filter refuses."""

from __future__ import annotations

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train twelve steps of 24 batches, with an evaluation in between."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    for number, batch in enumerate(watch.batches(loader(24))):
        if number < 4 or number % 5 < 2:
            continue
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
        if number == 12:
            model.eval()
            with watch("evaluation"), torch.no_grad():
                for rows in loader(3):
                    model(rows)
            model.train()
    watch.done()


if __name__ == "__main__":
    main()
