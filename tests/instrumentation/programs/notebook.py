"""What a notebook does: torch, a model and a running event loop are there before laggard is."""

from __future__ import annotations

import asyncio
import json
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laggard

logging.basicConfig()
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=4)
count = 0


def cell() -> None:
    """Train an epoch of 20 steps."""
    global count  # noqa: PLW0603 - as in a notebook
    for (batch,) in loader:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        laggard.log(samples=4)
        count += 1


async def main() -> None:
    """Run cells as a kernel does, inside its loop."""
    cell()
    laggard.instrument()
    for _ in range(2):
        cell()
        await asyncio.sleep(1.2)
    laggard.instrument()  # a cell that is run again
    cell()
    laggard.uninstrument()
    cell()
    laggard.instrument()
    cell()
    print(json.dumps({"trained": count}))


asyncio.run(main())
