"""Models, data and host work of a rank of a live job, which a file can make slower while the job runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from tests.field.live.jobs import CONTROL

WIDTH = 8
#: Seconds of a healthy batch.
USUAL = {"data": 0.010, "forward": 0.015, "backward": 0.020, "host": 0.005}

_RANK = int(os.environ["RANK"])


class _Control:
    """The file, read again whenever it changes."""

    def __init__(self) -> None:
        self._path = Path(os.environ[CONTROL])
        self._changed = -1
        self._content: dict[str, Any] = {}

    def seconds(self, place: str) -> float:
        changed = self._path.stat().st_mtime_ns
        if changed != self._changed:
            self._content = json.loads(self._path.read_text())
            self._changed = changed
        content = self._content
        slow = content.get("place") == place and content["rank"] == _RANK
        return USUAL[place] + (content["seconds"] if slow else 0.0)


_control = _Control()


def spend(place: str, share: float = 1.0) -> None:
    """Spend a share of what a batch takes in a place."""
    time.sleep(_control.seconds(place) * share)


class _Delay(torch.autograd.Function):
    """The identity, whose gradient takes a while."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        spend("backward")
        return gradients[0]


class Net(nn.Module):
    """A model whose forward and backward take a while."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        spend("forward")
        return torch.tanh(_Delay.apply(self.layer(row)))  # pyright: ignore[reportArgumentType] - apply gives a tensor


class Rows(Dataset[Any]):
    """Rows that take a while, by the size of the batch that they are for."""

    def __init__(self, size: int, batch: int = 2, *, as_mapping: bool = False) -> None:
        self.size = size
        self.batch = batch
        self.as_mapping = as_mapping

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        spend("data", 1 / self.batch)
        row = torch.sin(torch.arange(WIDTH) + float(index))
        return {"row": row} if self.as_mapping else row
