"""Four gloo ranks train a small model with DDP while a stopwatch written by hand measures the same steps.

One rank sleeps a little longer in one place. Prints one JSON line per rank: its stopwatch, in seconds per step.
Nothing in here knows of laggard. Arguments: place of the delay, the slow rank, steps, and ``--buffers``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PLACES = ("none", "data", "forward", "backward", "optimizer", "host")
WARMUP = 5


class Busy(torch.autograd.Function):
    """Takes a given time in forward and in backward, like a kernel of that length."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, None, None


class Net(nn.Module):
    """Four layers of 4 ms forward and 8 ms backward; the second takes the delay."""

    def __init__(self, forward: float, backward: float, *, buffers: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(4)])
        self.extra = (forward, backward)
        if buffers:
            self.register_buffer("statistics", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            forward, backward = self.extra if index == 1 else (0.0, 0.0)
            x = Busy.apply(layer(x), 0.004 + forward, 0.008 + backward)
        return x


class Batches(Dataset[torch.Tensor]):
    """Items that take a given time to load."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.ones(256)


class SlowSGD(torch.optim.SGD):
    """An optimizer whose update takes a given time longer."""

    extra = 0.0

    def step(self, closure: Any = None) -> Any:
        time.sleep(0.003 + self.extra)
        return super().step(closure)


def main() -> None:
    """Train and print the stopwatch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", choices=PLACES)
    parser.add_argument("--slow-rank", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--extra", type=float, default=0.030)
    parser.add_argument("--buffers", action="store_true")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    extra = dict.fromkeys(PLACES, 0.0)
    if rank == arguments.slow_rank:
        extra[arguments.place] = arguments.extra
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Net(extra["forward"], extra["backward"], buffers=arguments.buffers), bucket_cap_mb=1)
    optimizer = SlowSGD(ddp.parameters(), lr=1e-4)
    optimizer.extra = extra["optimizer"]
    batches = iter(DataLoader(Batches(0.005 + extra["data"]), batch_size=1))

    # The stopwatch: what a user would write. A step lasts from one fetch to the next.
    rows: list[dict[str, float]] = []
    fetched = 0.0
    for number in range(WARMUP + arguments.steps + 1):
        now = time.perf_counter()
        if number > WARMUP:
            rows[-1]["step"] = now - fetched
        if number == WARMUP + arguments.steps:
            break
        fetched = now
        batch = next(batches)
        loaded = time.perf_counter()
        output = ddp(batch)
        forwarded = time.perf_counter()
        loss = output.sum() * 1e-6
        summed = time.perf_counter()
        loss.backward()
        backwarded = time.perf_counter()
        last_gradient = forwarded + max(ddp.reducer.get_backward_stats()) * 1e-9
        asked = time.perf_counter()
        optimizer.step()
        stepped = time.perf_counter()
        optimizer.zero_grad()
        if extra["host"]:
            time.sleep(extra["host"])
        if number >= WARMUP:
            wait = backwarded - last_gradient
            rows.append(
                {
                    "data": loaded - fetched,
                    "forward": forwarded - loaded,
                    "backward": backwarded - summed - wait,
                    "communication": wait,
                    "optimizer": stepped - asked,
                }
            )
    # No fetch ends the last one, so whoever watches does not know its end.
    mean = {name: sum(row[name] for row in rows[:-1]) / len(rows[:-1]) for name in rows[0]}
    Path(arguments.out, f"{rank}.json").write_text(json.dumps({"rank": rank, "steps": len(rows[:-1]), **mean}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
