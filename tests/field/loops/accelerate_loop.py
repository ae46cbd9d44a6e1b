"""Accelerate's loaders: each batch is fetched before the one before it is handed out, in training and validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from tests.field.parts import host, loader, network, sgd
from tests.field.stopwatch import Stopwatch


def ahead(loader: Iterable[Any], watch: Stopwatch | None = None) -> Iterator[Any]:
    """Hand out a batch once the next one has been fetched, so that the last one is known to be the last."""
    batches = watch.iterator(loader) if watch else iter(loader)
    newest: Any = None
    more = True
    first = True
    while more:
        with watch("data") if watch else nullcontext():
            following = next(batches, None)
        more = following is not None
        if not first:
            yield newest
        newest, first = following, False


def main() -> None:
    """Train three epochs of six steps, with a validation after each."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training, validation = loader(6), loader(3)
    for _epoch in range(3):
        model.train()
        for batch in ahead(training, watch):
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            host()
            watch.step(loss)
        model.eval()
        with watch("evaluation"):
            for batch in ahead(validation):
                with torch.no_grad():
                    model(batch)
    watch.done()


if __name__ == "__main__":
    main()
