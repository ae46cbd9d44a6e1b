"""Training on a thread of a pool, as servers do: it trains twice, and waits for a file after each time."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from laggard import _script


def wait_for(path: Path) -> None:
    """Return once there is such a file."""
    while not path.exists():
        time.sleep(0.05)


def train(until: Path | None) -> None:
    """Train ten steps, and return when there is a file."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if until is not None:
        wait_for(until)


folder = Path(sys.argv[1])
_script._PAUSE_NS = 0
with ThreadPoolExecutor(1) as pool:
    pool.submit(train, None).result()
    wait_for(folder / "again")
    pool.submit(train, folder / "end").result()
