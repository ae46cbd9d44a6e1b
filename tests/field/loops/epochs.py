"""Epochs of a few batches: `short` ones, each a loop of its own, or an endless `cycle` over the loader."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tests.field.parts import host, loader, network, sgd
from tests.field.stopwatch import Stopwatch


def cycle(batches: Iterable[Any]) -> Iterator[Any]:
    """Start over at each end."""
    while True:
        yield from batches


def main(kind: str) -> None:
    """Train eighteen steps of epochs of three batches."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training = loader(3)

    def batches() -> Iterator[Any]:
        if kind == "cycle":
            endless = cycle(training)
            for _ in range(18):
                yield watch.fetch(endless)
        else:
            yield from itertools.chain.from_iterable(watch.batches(training) for _ in range(6))

    for batch in batches():
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        host()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
