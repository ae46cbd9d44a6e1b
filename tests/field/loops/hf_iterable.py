"""A streamed data set of Hugging Face's datasets, through a `loader` of torch, or `batched` by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from datasets import IterableDataset  # pyright: ignore[reportMissingImports] - make field installs it
from torch.utils.data import DataLoader

from tests.field.parts import network, sample, sgd
from tests.field.stopwatch import Stopwatch


def rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of the data set."""
    for index in range(24):
        yield {"row": sample(index).tolist()}


def main(source: str) -> None:
    """Train twelve steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    stream = IterableDataset.from_generator(rows).with_format("torch").shuffle(seed=0, buffer_size=4)
    batches: Any = DataLoader(stream, batch_size=2) if source == "loader" else stream.iter(batch_size=2)
    for batch in watch.batches(batches):
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch["row"].to(torch.float32))
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
