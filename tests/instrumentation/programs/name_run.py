"""Ranks with a process group and a loop without a loader or a module, made by torchrun or by multiprocessing."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, world_size: int, store: str) -> None:
    """Take as many steps as it takes the drain to find the run's name, the same number on all ranks."""
    if store:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    else:
        dist.init_process_group("gloo")
    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(60):
        (parameter * 2).sum().backward()
        dist.all_reduce(parameter.grad)
        optimizer.step()
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # Ranks that no launcher's environment names.
        mp.start_processes(train, (2, sys.argv[1]), nprocs=2, start_method=sys.argv[2])
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "")
