"""Four gloo ranks that train for some steps and then hang: KIND says how. They end when their launcher is gone.

lonely: rank 3 never comes to the collective of its half, in which rank 2 waits; the other half waits for all.
skipped: rank 2 leaves one collective out, so it is done with its steps before the others.
unsent: rank 0 never sends what rank 1 receives; the others wait for both.
unreceived: rank 1 never receives what rank 0 sends; the others wait for both.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = 30


def main() -> None:
    """Train, then hang."""
    kind, launcher = sys.argv[1], os.getppid()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hang() -> None:
        while os.getppid() == launcher:
            time.sleep(0.05)
        os._exit(0)

    for step in range(STEPS):
        last = step == STEPS - 1
        model(torch.ones(4, 8)).sum().backward()
        if rank < 2 and kind in ("unsent", "unreceived"):
            stuck = {"unsent": 0, "unreceived": 1}[kind]
            if last and rank == stuck:
                hang()
            tensor = torch.zeros(8)
            if rank:
                dist.recv(tensor, 0)
            else:
                dist.send(tensor, 1)
        if kind == "lonely" and last and rank == 3:
            hang()
        if kind == "lonely":
            dist.all_reduce(torch.ones(4), group=halves[rank // 2])
        if not (kind == "skipped" and rank == 2 and step == STEPS // 2):
            dist.all_reduce(torch.ones(8))
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    hang()


if __name__ == "__main__":
    main()
