"""Two ranks train with gloo until a file appears; rank 1 is slow in its backward pass.

Arguments: the file, a store, and ``other`` where it is to be slow between the phases.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["RANK"])
slow = sys.argv[3] if len(sys.argv) > 3 else "backward"


class Work(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.16 if rank == 1 and slow == "backward" else 0.01)
        return gradient.clone()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Work.apply(self.first(x)))


def write_a_log(_: float) -> None:
    """Take the time of rank 1 where it is slow between the phases."""
    time.sleep(0.16 if rank == 1 and slow == "other" else 0.0)


def main() -> None:
    """Train until both ranks are told to end."""
    end = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(50, 8)), batch_size=1)
    over = torch.zeros(1)
    deadline = time.monotonic() + 120
    while not over.item():
        for (batch,) in loader:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            write_a_log(0.0)
        # Both end after the same step.
        over.fill_(float(end.exists() or time.monotonic() > deadline))
        torch.distributed.all_reduce(over)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
