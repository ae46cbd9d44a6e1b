"""A loop as the first argument names it, of a second and more; nothing in here knows of laggard."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DATA = TensorDataset(torch.ones(64, 4))


def by_hand() -> None:
    """Update the parameters without an optimizer, ten times."""
    model = nn.Linear(4, 1)
    for number, (rows,) in enumerate(DataLoader(DATA, batch_size=4)):
        model(rows).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None
        time.sleep(0.1)
        if number == 9:
            return


def replicated() -> None:
    """Train a replicated model for three steps, which is all of the run."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(DATA, batch_size=4))
    for _ in range(3):
        model(next(batches)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.4)
    dist.destroy_process_group()


if __name__ == "__main__":
    {"by_hand": by_hand, "replicated": replicated}[sys.argv[1]]()
