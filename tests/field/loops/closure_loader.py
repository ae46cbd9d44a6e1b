"""Composer and skorch: a closure of the optimizer goes forward and backward with both halves of a batch."""

from __future__ import annotations

from typing import Any

import torch

from tests.field.parts import host, loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train two epochs of eight batches, with an evaluation within each."""
    watch = Stopwatch()
    model = network(forward=0.002, backward=0.003)
    optimizer: Any = sgd(model)
    training, validation = loader(8, batch_size=4), loader(4)
    for _epoch in range(2):
        for number, batch in enumerate(watch.batches(training)):

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                total = torch.zeros(())
                for micro in batch.split(2):
                    with watch("forward"):
                        output = model(micro)
                    loss = output.square().mean() / 2
                    with watch("backward"):
                        loss.backward()
                    total += loss.detach()
                return total

            with watch("optimizer"):
                loss = optimizer.step(closure)
            watch.step(loss)
            host(0.002)
            if number == 5:
                model.eval()
                with watch("evaluation"), torch.no_grad():
                    for evaluated in validation:
                        model(evaluated)
                model.train()
    watch.done()


if __name__ == "__main__":
    main()
