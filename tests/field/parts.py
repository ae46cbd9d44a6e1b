"""What the loops are made of: models, data and optimizers whose time is mostly sleep, so that it is steady."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

WIDTH = 8

FETCH = 0.0015
"""Seconds to load a sample."""
FORWARD = 0.004
BACKWARD = 0.006
UPDATE = 0.003
HOST = 0.005
"""Seconds that a script spends on something of its own."""


class _Delay(torch.autograd.Function):
    """The identity, whose gradient takes a while."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Block(nn.Module):
    """A layer that takes its time, forward and backward."""

    def __init__(self, width: int = WIDTH, forward: float = FORWARD, backward: float = BACKWARD) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.seconds = (forward, backward)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        forward, backward = self.seconds
        time.sleep(forward)
        delayed = _Delay.apply(self.layer(inputs), backward)
        return torch.tanh(delayed)


class Net(nn.Module):
    """A model of two layers."""

    def __init__(self, forward: float = FORWARD, backward: float = BACKWARD) -> None:
        super().__init__()
        self.body = Block(forward=forward, backward=backward)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


def network(seed: int = 0, **options: float) -> Net:
    """A model, the same for each seed."""
    torch.manual_seed(seed)
    return Net(**options)


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of the models, whose update takes a while."""
    optimizer = torch.optim.SGD([parameter for model in models for parameter in model.parameters()], lr=0.05)
    optimizer.register_step_pre_hook(lambda *_: time.sleep(UPDATE))
    return optimizer


def sample(index: int, delay: float = FETCH) -> torch.Tensor:
    """A row of data, after a while."""
    time.sleep(delay)
    return torch.sin(torch.arange(WIDTH) + float(index))


class Rows(Dataset[torch.Tensor]):
    """Rows that are loaded one by one, and perhaps transformed."""

    def __init__(
        self, size: int, delay: float = FETCH, transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        self.size = size
        self.delay = delay
        self.transform = transform

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.size:
            raise IndexError(index)
        row = sample(index, self.delay)
        return row if self.transform is None else self.transform(row)


class Stream(IterableDataset[torch.Tensor]):
    """Rows without a length."""

    def __init__(self, size: int, delay: float = FETCH) -> None:
        self.size = size
        self.delay = delay

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (sample(index, self.delay) for index in range(self.size))


def loader(batches: int, batch_size: int = 2, delay: float = FETCH, **options: Any) -> DataLoader[torch.Tensor]:
    """A loader of so many batches."""
    return DataLoader(Rows(batches * batch_size, delay), batch_size=batch_size, **options)


def host(seconds: float = HOST) -> None:
    """Host work of the script: logging, metrics, an environment."""
    time.sleep(seconds)
