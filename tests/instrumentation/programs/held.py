"""Two ranks take 20 steps; then one of them is held in a barrier until a file appears, and the other comes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    """Train, wait, say so."""
    end = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    deadline = time.monotonic() + 60
    while dist.get_rank() == 1 and not end.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    dist.barrier()
    print("released")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
