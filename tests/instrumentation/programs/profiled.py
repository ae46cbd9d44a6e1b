"""Two ranks train with gloo, one of them slow in one way after the other, under torch's profiler.

Arguments: a folder for the traces, then faults: ``none``, ``data``, ``forward``, ``backward``, ``other``.
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
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

SLOW_RANK = 1
SLOW_SECONDS = 0.04
STEPS = 6
#: Of both ranks, so that what the machine does beside them is little in comparison.
WORK_SECONDS = 0.02
rank = int(os.environ["RANK"])
fault = "none"


def work(phase: str) -> None:
    """Take the time that a phase needs on this rank."""
    time.sleep(
        WORK_SECONDS * (phase in {"forward", "backward"}) + SLOW_SECONDS * (fault == phase and rank == SLOW_RANK)
    )


class Work(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        work("forward")
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        work("backward")
        return gradient.clone()


class Samples(Dataset):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        work("data")
        return torch.randn(16)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Work.apply(torch.relu(self.first(x))))


def main() -> None:
    """Trace some steps with each fault."""
    global fault
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for fault in sys.argv[2:]:
        # One file is compressed, one is not.
        path = folder / fault / f"trace{rank}.json{'.gz' * rank}"
        path.parent.mkdir(exist_ok=True)
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
            on_trace_ready=lambda done, path=path: done.export_chrome_trace(str(path)),
        ) as profiler:
            for step, batch in enumerate(DataLoader(Samples(), batch_size=1)):
                if step > STEPS:
                    break
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                work("other")
                profiler.step()
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
