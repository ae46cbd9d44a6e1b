"""A rank that fails in its first life and finishes in its second."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def main() -> None:
    """Take ten steps, then end as the number of restarts says."""
    dist.init_process_group("gloo")
    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(10):
        (parameter * 2).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("on purpose")


if __name__ == "__main__":
    main()
