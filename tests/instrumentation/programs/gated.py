"""Trains 60 steps, and 60 whose forward takes longer, and writes them as JSON lines to the file that is named."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laggard

STEPS = 60
SHORT, LONG = 0.005, 0.02


class Slow(nn.Module):
    """A layer after a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.pause = SHORT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Wait, and apply the layer."""
        time.sleep(self.pause)
        return self.layer(x)


torch.set_num_threads(1)
model = Slow()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(2 * STEPS + 1, 8)), batch_size=1)):
    model.pause = SHORT if number < STEPS else LONG
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
path = Path(sys.argv[1])
laggard.dump_trace(path)
deadline = time.monotonic() + 30
while not path.exists() and time.monotonic() < deadline:
    time.sleep(0.02)
