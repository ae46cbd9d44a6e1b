"""Ranks that train until the file FOLDER/stall is there: then rank 2 waits until it is gone, the others for rank 2.

They end with FOLDER/end, or when their launcher is gone.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, stall, go on."""
    sign, end = (Path(sys.argv[1]) / name for name in ("stall", "end"))
    launcher = os.getppid()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while os.getppid() == launcher and not end.exists():
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        while dist.get_rank() == 2 and sign.exists() and os.getppid() == launcher:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
