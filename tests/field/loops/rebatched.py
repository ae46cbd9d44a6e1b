"""Batches that are taken apart, shuffled and cut again between loader and loop, as webdataset's pipelines do.

There are four updates to a batch of the loader, and most of them have no fetch before them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def rows(batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Take batches apart."""
    for batch in batches:
        yield from batch


def shuffled(items: Iterable[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    """Hand out items in random order, from a buffer."""
    chance = random.Random(0)
    buffer: list[torch.Tensor] = []
    for item in items:
        buffer.append(item)
        if len(buffer) > size:
            yield buffer.pop(chance.randrange(len(buffer)))
    chance.shuffle(buffer)
    yield from buffer


def batched(items: Iterable[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    """Cut batches."""
    batch: list[torch.Tensor] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield torch.stack(batch)
            batch = []


def main() -> None:
    """Train 24 steps on six batches of a loader."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    for batch in batched(shuffled(rows(watch.batches(loader(6, batch_size=8))), 6), 2):
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main()
