"""HF Trainer with accumulation: all batches of an update are fetched first; every five updates an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch

ACCUMULATED = 4
EVALUATE_EVERY = 5


def main() -> None:
    """Train two epochs of ten updates."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training, validation = loader(10 * ACCUMULATED), loader(4)
    updates = 0
    for _epoch in range(2):
        batches = watch.iterator(training)
        for _ in range(10):
            loss = update(watch, model, optimizer, batches)
            updates += 1
            watch.step(loss)
            if updates % EVALUATE_EVERY == 0:
                evaluate(watch, model, validation)
    watch.done()


def update(watch: Stopwatch, model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[torch.Tensor]) -> float:
    """Fetch the batches of an update, and train on them one by one."""
    samples = [watch.fetch(batches) for _ in range(ACCUMULATED)]
    total = 0.0
    model.train()
    for batch in samples:
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean() / ACCUMULATED
        with watch("backward"):
            loss.backward()
        total += loss.item()
    with watch("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    return total


def evaluate(watch: Stopwatch, model: Any, validation: Any) -> None:
    """Go once through the validation data."""
    model.eval()
    with watch("evaluation"), torch.no_grad():
        for batch in validation:
            model(batch)


if __name__ == "__main__":
    main()
