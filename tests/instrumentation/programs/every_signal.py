"""One rank that uses every signal, with a process group of its own, until a file appears."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import laggard


def main() -> None:
    """Train with all phases, several kinds of collectives and all numbers of laggard.log."""
    end = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train = DataLoader(TensorDataset(torch.randn(200, 8)), batch_size=4, num_workers=1, persistent_workers=True)
    checkpoint = f"{sys.argv[2]}.pt"
    torch.save(model.state_dict(), checkpoint)
    torch.load(checkpoint)
    deadline = time.monotonic() + 60
    while not end.exists() and time.monotonic() < deadline:
        for (batch,) in train:
            with laggard.phase("h2d"):
                inputs = batch.clone()
            loss = model(inputs).square().mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            laggard.log(loss=loss, gradient_norm=norm, learning_rate=0.01, samples=4, tokens=32, flops=1e6)
            dist.all_reduce(torch.ones(4))
            dist.barrier()
            torch.save(model.state_dict(), checkpoint)
            with laggard.phase("evaluation"), torch.no_grad():
                model(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
