"""A data set that reads shards with a loader of its own, inside the fetch of the loader that trains.

In the manner of data sets that mix or chain others. Every six steps there is an evaluation of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


class Shards(IterableDataset[torch.Tensor]):
    """Rows of several shards, each read by a loader."""

    def __init__(self, shards: int) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.shards):
            for rows in loader(3):
                yield from rows


def main() -> None:
    """Train twelve steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    for number, batch in enumerate(watch.batches(DataLoader(Shards(6), batch_size=3))):
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
        if number % 6 == 5:
            with watch("evaluation"), torch.no_grad():
                for rows in DataLoader(Shards(1), batch_size=3):
                    model(rows)
    watch.done()


if __name__ == "__main__":
    main()
