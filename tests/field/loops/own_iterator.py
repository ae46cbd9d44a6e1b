"""fastai's loader: not torch's, but it makes torch's iterators itself, around a stand-in for a loader that it keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from tests.field.parts import Rows, network, sgd
from tests.field.stopwatch import Stopwatch


class Loader:
    """Makes an iterator of torch's for each pass."""

    def __init__(self, batches: int, workers: int) -> None:
        self._inner = DataLoader(Rows(2 * batches), batch_size=2, num_workers=workers)
        self._kind: Any = _MultiProcessingDataLoaderIter if workers else _SingleProcessDataLoaderIter

    def __iter__(self) -> Iterator[Any]:
        yield from self._kind(self._inner)


def main(workers: int) -> None:
    """Train three epochs of six batches, with an evaluation after each."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training, validation = Loader(6, workers), Loader(3, workers)
    for _epoch in range(3):
        model.train()
        for batch in watch.batches(training):
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            watch.step(loss)
        model.eval()
        with watch("evaluation"), torch.no_grad():
            for batch in validation:
                model(batch)
    watch.done()


if __name__ == "__main__":
    main(int(sys.argv[1]))
