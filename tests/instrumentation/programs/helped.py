"""A rank, and a process with a group that it starts: to save checkpoints, to train, or as its peer. Or an engine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from laggard.shared import environment


def join(store: str, rank: int, world_size: int) -> None:
    """Make a process group."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)


def started(kind: str, store: str) -> None:
    """Be the process that the rank starts, once the rank is known."""
    while not list(environment.state_directory().glob("*.state")):
        time.sleep(0.01)
    join(store, *((1, 2) if kind == "peer" else (0, 1)))
    if kind == "trains":
        torch.ones(1, requires_grad=True).sum().backward()


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind == "engine":
        eval("join(store, 0, 1)", {"__name__": "vllm.parallel_state", "join": join, "store": f"{folder}/own"})
        sys.exit()
    child = mp.get_context("fork").Process(target=started, args=(kind, f"{folder}/peers"))
    child.start()
    join(f"{folder}/{'peers' if kind == 'peer' else 'own'}", 0, 2 if kind == "peer" else 1)
    child.join()
    sys.exit(child.exitcode)
