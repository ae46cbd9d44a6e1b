"""Two ranks of which one says its peer group at once and the other after two seconds of steps."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import laggard


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        laggard.set_peer_group("early")
    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for number in range(50):
        (parameter * 2).sum().backward()
        optimizer.step()
        time.sleep(0.1)
        if number == 35 and dist.get_rank() == 1:
            laggard.set_peer_group("late")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
