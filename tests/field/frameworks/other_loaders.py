"""Loaders that are not torch's: torchdata's `nodes`, and `grain`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from tests.field.noted import NotedNet, NotedRows, finished, watch


def nodes() -> Iterable[Any]:
    """A pipeline of torchdata."""
    from torchdata import nodes  # noqa: PLC0415 - a run takes one of the two

    rows = NotedRows(32)
    source = nodes.SamplerWrapper(torch.utils.data.SequentialSampler(rows))
    batched = nodes.Batcher(nodes.Mapper(source, rows.__getitem__), batch_size=2)
    return nodes.Loader(nodes.Mapper(batched, torch.stack))


def grain() -> Iterable[Any]:
    """A pipeline of grain, as torchtitan has it."""
    import grain as library  # noqa: PLC0415  # pyright: ignore[reportMissingImports] - make field installs it

    data = library.MapDataset.source(NotedRows(32)).seed(0).shuffle().batch(2, batch_fn=torch.stack)
    return data.to_iter_dataset(library.ReadOptions(num_threads=0, prefetch_buffer_size=0))


def main(kind: str) -> None:
    """Train sixteen updates."""
    model = NotedNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    updates = 0
    for batch in {"nodes": nodes, "grain": grain}[kind]():
        loss = model(batch).square().mean()
        watch.losses.append(loss.item().hex())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
    finished(updates)


if __name__ == "__main__":
    main(sys.argv[1])
