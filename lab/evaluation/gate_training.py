"""Trains a small model for :mod:`lab.evaluation.gate_real`.

    python -m lab.evaluation.gate_training FOLDER KIND UNITS

Steps are written as JSON lines into the folder; of the kinds "forward" and "data" each has so many units of work more,
of the kind "alternating" every second forward pass.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

import laggard

STEPS = 400
_WIDTH, _BATCH, _LAYERS = 384, 64, 8
#: Units of work that loading data and the forward pass have in each run, and the size of one.
_UNITS, _UNIT = 10, 96
#: Steps are written out before they fall out of the 256 that are kept.
_EVERY = 80


class _Work:
    def __init__(self) -> None:
        self._matrix = torch.randn(_UNIT, _UNIT)

    def __call__(self, units: int) -> None:
        for _ in range(units):
            self._matrix.mm(self._matrix)


class _Batches(Dataset[torch.Tensor]):
    def __init__(self, work: _Work, units: int) -> None:
        self._work, self._units = work, units

    def __len__(self) -> int:
        return STEPS + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        self._work(self._units)
        return torch.full((_BATCH, _WIDTH), 1 / (1 + index))


class _Model(nn.Module):
    def __init__(self, work: _Work, units: int) -> None:
        super().__init__()
        self._work, self._units = work, units
        self.alternates = self.passes = 0
        self.layers = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work, and apply the layers."""
        self._work(self._units)
        if self.alternates:
            self._work(self.alternates * (self.passes % 2))
        self.passes += 1
        return self.layers(x)


def main() -> None:
    """Train."""
    folder, kind, extra = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    laggard.instrument()
    work = _Work()
    batches = _Batches(work, _UNITS + extra * (kind == "data"))
    model: nn.Module = _Model(work, _UNITS + extra * (kind == "forward"))
    model.alternates = extra * (kind == "alternating")
    rank, several = int(os.environ.get("RANK", "0")), "RANK" in os.environ
    if several:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number, batch in enumerate(DataLoader(batches, batch_size=None)):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % _EVERY == _EVERY - 1:
            laggard.dump_trace(folder / f"{rank}-{number}.jsonl")
    last = folder / f"{rank}-last.jsonl"
    laggard.dump_trace(last)
    deadline = time.monotonic() + 30
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    if several:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
