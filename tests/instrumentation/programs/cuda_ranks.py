"""Two ranks or more on real GPUs, one of them slow: run by a person who has one, with ``make test-cuda``.

Under ``torchrun``. In each layout the last rank takes 30 ms longer, in forward or in backward. Its own time must show
that, and the exposed wait of its peers, on every rank's device clock. ``--cpu`` does the same on processors.

Where there are fewer GPUs than ranks, ranks share one: each says that it is a host of its own, since NCCL refuses two
ranks of a host on one GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import laggard
from laggard import _process
from laggard.shared.phases import Phase

EXTRA_MS = 30.0
TOLERANCE_MS = EXTRA_MS / 3
STEPS, WARMUP = 12, 4
#: Two drains, and a reserve.
DRAINS_SECONDS = 2.5
#: Milliseconds that a block takes longer on this rank, by phase.
extra = {Phase.FORWARD: 0.0, Phase.BACKWARD: 0.0}
#: Cycles of a millisecond on the device; 0 on processors.
cycles = 0.0


def work(milliseconds: float) -> None:
    """Keep the device, or else the processor, busy."""
    if cycles:
        torch.cuda._sleep(round(milliseconds * cycles))
    else:
        time.sleep(milliseconds / 1000)


class Sleep(torch.autograd.Function):
    """Work, twice as long in backward."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Work."""
        work(2 + extra[Phase.FORWARD])
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        """Work."""
        work(4 + extra[Phase.BACKWARD])
        return gradients[0].clone()


class Block(nn.Module):
    """A linear layer and its work."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work."""
        return Sleep.apply(self.linear(x))


def ddp(device: torch.device) -> nn.Module:
    """Replicas."""
    return DistributedDataParallel(nn.Sequential(Block(), Block()).to(device))


def fsdp1(device: torch.device) -> nn.Module:
    """Wrapped blocks."""
    blocks = [FullyShardedDataParallel(Block(), device_id=device) for _ in range(2)]
    return FullyShardedDataParallel(nn.Sequential(*blocks), device_id=device)


def fsdp2(device: torch.device) -> nn.Module:
    """Blocks sharded in place."""
    model = nn.Sequential(Block(), Block()).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


class Averaged(nn.Module):
    """Replicas whose gradients the script averages, by a blocking collective each."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block()).to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return self.blocks(x)

    def average(self) -> None:
        """Average the gradients."""
        for parameter in self.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG if parameter.is_cuda else dist.ReduceOp.SUM)


class Sum(torch.autograd.Function):
    """The sum over all ranks, blocking, in forward and in backward, as tensor-parallel layers have it."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Add."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Add."""
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


class Parallel(nn.Module):
    """A block between two sums."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return Sum.apply(self.block(Sum.apply(x)))


def averaged(device: torch.device) -> nn.Module:
    """Replicas that the script keeps equal."""
    return Averaged(device)


def parallel(device: torch.device) -> nn.Module:
    """Layers that are split over the ranks."""
    return nn.Sequential(Parallel(), Parallel()).to(device)


LAYOUTS = {"ddp": ddp, "fsdp1": fsdp1, "fsdp2": fsdp2, "averaged": averaged, "parallel": parallel}


def measure(make: Callable[[torch.device], nn.Module], device: torch.device, phase: Phase) -> list[dict[str, float]]:
    """Train in a layout; return the smallest time of each phase of every rank, in milliseconds."""
    slow = dist.get_rank() == dist.get_world_size() - 1
    extra.update(dict.fromkeys(extra, 0.0))
    if slow:
        extra[phase] = EXTRA_MS / 2  # in each of two blocks
    process: Any = _process.current()
    steps = process.trace._steps
    newest = steps[-1].number if steps else 0
    model = make(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader([torch.ones(256)] * 8 * (STEPS + WARMUP), batch_size=8):
        model(batch.to(device).requires_grad_()).square().mean().backward()
        if isinstance(model, Averaged):
            model.average()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    time.sleep(DRAINS_SECONDS)
    found = [step for step in steps if step.number > newest + WARMUP and not step.excluded][: STEPS - 2]
    assert len(found) >= STEPS // 2, f"only {len(found)} steps were measured"
    # The smallest of each: what else a machine does only ever adds.
    smallest = {p.label: min(step.phases[p] for step in found) / 1e6 for p in Phase}
    smallest["own"] = min(step.own for step in found) / 1e6
    smallest["available"] = float(all(h.available for h in process._parts if h.signal == "communication"))
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, smallest)
    return ranks


def judge(ranks: list[dict[str, float]], phase: Phase) -> str:
    """Return what is wrong, empty if nothing is."""
    *others, slow = ranks
    for name, expected in (("own", EXTRA_MS), (phase.label, EXTRA_MS), ("communication", -EXTRA_MS)):
        for other in others:
            if abs(slow[name] - other[name] - expected) > TOLERANCE_MS:
                return f"{name} differs by {slow[name] - other[name]:.1f} ms, not {expected:.0f}"
    return "" if all(rank["available"] for rank in ranks) else "communication is unavailable"


def main() -> int:
    """Go through the layouts."""
    global cycles  # noqa: PLW0603 - a constant of the device
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cpu", action="store_true", help="on processors, over gloo")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    arguments = parser.parse_args()
    size, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    devices = torch.cuda.device_count()
    if not arguments.cpu and not devices:
        if local_rank == 0:
            print("skipped: torch finds no GPU")
        return 0
    torch.set_num_threads(1)
    laggard.instrument()
    device = torch.device("cpu")
    if arguments.cpu:
        dist.init_process_group("gloo")
    else:
        if devices < size:
            os.environ.update(NCCL_HOSTID=f"rank{local_rank}", NCCL_SOCKET_IFNAME="lo")
        device = torch.device("cuda", local_rank if devices >= size else 0)
        torch.cuda.set_device(device)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(2):
            begin.record()
            torch.cuda._sleep(50_000_000)
            end.record()
            end.synchronize()
        cycles = 50_000_000 / begin.elapsed_time(end)
        dist.init_process_group("nccl", device_id=device)
    measure(ddp, device, Phase.FORWARD)  # the outermost modules and the device are found
    failures = 0
    for name in arguments.layouts.split(","):
        for phase in extra:
            ranks = measure(LAYOUTS[name], device, phase)
            reason = judge(ranks, phase)
            failures += bool(reason)
            if dist.get_rank() == 0:
                figures = [{k: round(v, 1) for k, v in r.items() if v > 0.05} for r in ranks]
                print(f"{'FAILED' if reason else 'ok':8}{name:10}{phase.label:10}{reason} {figures}", flush=True)
    dist.destroy_process_group()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
