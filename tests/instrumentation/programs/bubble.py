"""Two gloo ranks are the two stages of a pipeline (1F1B).

Arguments: how many micro-batches a step has, and how long a forward and a backward of one take.
Nothing in here knows of laggard.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader

from tests.instrumentation.programs.straggler import Busy

STEPS = 40


class Stage(nn.Module):
    """Takes the same time in each micro-batch."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.seconds = (forward, backward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Busy.apply(self.layer(x), *self.seconds)


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def main() -> None:
    """Train."""
    micro_batches, forward, backward = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    model, rank = Stage(forward, backward), dist.get_rank()
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    # The first exchange opens NCCL's channels. In torch 2.9 it sends eight bytes into four, which gloo refuses.
    stage._get_init_p2p_neighbors_ops = list
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = 2 * micro_batches
    for samples in DataLoader(torch.randn(STEPS * batch, 16), batch_size=batch):
        schedule.step(samples) if rank == 0 else schedule.step(target=samples)
        # As a norm of all gradients would, for their clipping.
        dist.all_reduce(torch.ones(1))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
