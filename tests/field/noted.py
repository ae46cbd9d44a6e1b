"""Models and data that note their own times, for frameworks that call them where no script could hold a stopwatch."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from tests.field.parts import FETCH, FORWARD, WIDTH
from tests.field.stopwatch import Stopwatch

watch = Stopwatch()


class _Noted(torch.autograd.Function):
    """The identity, whose gradient takes a while and is noted."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with watch("backward"):
            time.sleep(2 * FORWARD)
        return gradients[0]


class NotedNet(nn.Module):
    """A model that notes forwards as training or evaluation, and backwards."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, row: torch.Tensor, **_: Any) -> torch.Tensor:
        with watch("forward" if torch.is_grad_enabled() else "evaluation"):
            time.sleep(FORWARD)
        return torch.tanh(_Noted.apply(self.layer(row)))  # pyright: ignore[reportArgumentType] - apply gives a tensor


class NotedRows(Dataset[Any]):
    """Rows whose loading is noted as data, or as evaluation."""

    def __init__(self, size: int, phase: str = "data", *, as_mapping: bool = False) -> None:
        self.size = size
        self.phase = phase
        self.as_mapping = as_mapping

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        with watch(self.phase):
            time.sleep(FETCH)
        row = torch.sin(torch.arange(WIDTH) + float(index))
        return {"row": row} if self.as_mapping else row


def finished(steps: int) -> None:
    """Leave the notes, and the framework's own count of steps."""
    watch.counted = steps
    watch.done()
