"""The job that both tools watch: a small network with DistributedDataParallel, and one fault.

    torchrun --nproc-per-node 4 train.py FAULT RANK STEPS

FAULT is on RANK from the 50th step on: ``data``, ``forward``, ``backward``, ``optimizer`` or ``host`` take longer,
``leak`` keeps memory, ``hang`` stands still; ``all-data`` is on all ranks, ``imbalance`` on a different one in each
step; ``none`` is nothing. With TRACEML in the environment each step is inside of traceml-ai's context manager, as it
wants to be used; laggard wants nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BEGIN = 50
#: Seconds of a usual forward, and by which a fault makes a step longer.
USUAL, EXTRA = 0.02, 0.04
#: The same where it is another rank each time: ranks that share processors differ by themselves, so the demo's rules
#: want three fifths of the step before they call that a fault.
ROAMING = 0.08
WIDTH = 256
LEAK = 1 << 20
#: Faults that are not of one rank.
SHARED = {"all-data": "data", "imbalance": "forward"}

place = ""
extra = EXTRA
kept: list[bytearray] = []


def pause(here: str) -> None:
    """Take longer, if the fault is here now."""
    if here == place:
        time.sleep(extra)


class Numbers(Dataset[torch.Tensor]):
    """Rows that are made when they are asked for."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, item: int) -> torch.Tensor:
        pause("data")
        return torch.full((WIDTH,), item % 7 / 7)


class Backward(torch.autograd.Function):
    """Nothing in the forward pass, and what a slow rank needs in the backward pass."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        """Return ``x``."""
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient, later."""
        pause("backward")
        return gradient


class Network(nn.Module):
    """Linear layers, with work in the forward pass that needs no processor: ranks have to share few."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform ``x`` of shape (batch, WIDTH)."""
        time.sleep(USUAL)
        pause("forward")
        return Backward.apply(self.layers(x))


def main() -> None:
    """Train."""
    global place, extra  # noqa: PLW0603 - what the data set and the network look at
    fault, slow_rank, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    extra = ROAMING if fault == "imbalance" else EXTRA
    traced: Callable[[nn.Module], AbstractContextManager[Any]] = nullcontext
    if os.environ.get("TRACEML"):
        import traceml_ai  # noqa: PLC0415 - a peer that need not be there

        traceml_ai.init(mode="auto")
        traced = traceml_ai.trace_step
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *_: pause("optimizer"))
    for done, batch in enumerate(DataLoader(Numbers(), batch_size=1)):
        if done == steps:
            break
        if done >= BEGIN:
            whose = done * 7919 // 13 % world if fault == "imbalance" else rank if fault == "all-data" else slow_rank
            place = SHARED.get(fault, fault) if rank == whose else ""
        with traced(model):
            loss = model(batch).square().mean()
            pause("host")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if place == "leak":
            kept.append(bytearray(b"x" * LEAK))
        while place == "hang":
            time.sleep(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
