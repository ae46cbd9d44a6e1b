"""A rank with two data workers that compute, until standard input is closed; answers with a line when they run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from laggard.shared import statefile
from laggard.shared.statefile import StateWriter
from tests.exporter.support import FACTS


class Numbers(Dataset[int]):
    """Numbers that cost time."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return sum(range(20_000)) + index


writer = StateWriter(Path(sys.argv[1]), replace(FACTS, start_boottime_ns=statefile.boottime_ns()))
batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=2))
next(batches)
print("loading", flush=True)
sys.stdin.read()
