"""Four ranks of a DDP job that use every signal, until a file appears. Arguments: that file and a folder.

The ranks differ in the profile of their series, in nothing else. What needs a device is there as far as laggard's own
hooks ask for it: an allocator with statistics, of a kind of device that this machine does not have.
"""

# ruff: noqa: E402 - the environment comes first

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROFILES = ({}, {"LAGGARD_SERIES": "compact", "LAGGARD_HISTOGRAMS": "full"}, {"LAGGARD_HISTOGRAMS": "full"}, {})
rank = int(os.environ["RANK"])
os.environ.update(PROFILES[rank])

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import laggard
from laggard import _process

RANKS = 4
STATISTICS = {
    "allocated_bytes.all.current": 1 << 30,
    "allocated_bytes.all.peak": 3 << 30,
    "reserved_bytes.all.current": 4 << 30,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


def simulate_device(folder: Path) -> None:
    """Have the hooks find a device in use, a limit of memory and a kernel that counts waits for disks."""
    torch.xpu.is_initialized = lambda: True
    torch.xpu.device_count = lambda: 1
    torch.xpu.memory_stats = lambda _: STATISTICS
    torch.xpu.get_device_properties = lambda _: SimpleNamespace(total_memory=80 << 30)
    limit = folder / f"memory-{rank}.max"
    limit.write_text(str(64 << 30))
    process = _process.current()
    assert process is not None
    hooks: dict[str, Any] = {hook.name: hook for hook in process._parts}
    hooks["memory"]._limit_files = [limit]
    hooks["workers"]._counts_io_wait = True


def communicate() -> None:
    """Call collectives of every kind by hand."""
    four = torch.ones(RANKS)
    parts = [torch.ones(RANKS) for _ in range(RANKS)]
    dist.all_reduce(four)
    dist.reduce(four, 0)
    dist.broadcast(four, 0)
    dist.all_gather(parts, four)
    dist.reduce_scatter_tensor(torch.ones(1), four)
    dist.all_to_all_single(torch.ones(RANKS), four)
    dist.gather(four, parts if rank == 0 else None, dst=0)
    dist.scatter(four, parts if rank == 0 else None, src=0)
    neighbours = (rank + 1) % RANKS, (rank - 1) % RANKS
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, four, neighbours[0]), dist.P2POp(dist.irecv, parts[0], neighbours[1])]
    ):
        work.wait()
    all_reduce(four, "sum", dist.group.WORLD).sum().item()
    dist.barrier()


@torch.compile(backend="eager", dynamic=False)
def scaled(x: torch.Tensor) -> torch.Tensor:
    """Compiled again for each new size."""
    return x * 2


def main() -> None:
    """Train with all phases, several kinds of collectives and all numbers of laggard.log."""
    end, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    train = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4, num_workers=1, persistent_workers=True)
    checkpoint = folder / f"{rank}.pt"
    simulate_device(folder)
    step = 0
    ended = torch.zeros(1)
    while not ended:
        for (batch,) in train:
            step += 1
            batch.to("meta")  # what the hook sees of a copy to a device
            loss = model(batch).square().mean() * (float("inf") if step == 6 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            laggard.log(loss=loss, gradient_norm=norm, learning_rate=0.01, samples=4, tokens=32, flops=1e6)
            communicate()
            if step < 4:
                scaled(torch.ones(step + 1))
            if step == 3:
                torch.save(model.state_dict(), checkpoint)
                torch.load(checkpoint)  # keeps its step out of the phases
            if step % 5 == 0:
                torch.save(model.state_dict(), checkpoint)
            with laggard.phase("evaluation"), torch.no_grad():
                model(batch)
            time.sleep(0.02)
        for generation in range(3):
            gc.collect(generation)
        ended.fill_(end.exists())
        dist.broadcast(ended, 0)  # all ranks leave after the same epoch
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
