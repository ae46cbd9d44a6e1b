"""fastai's Learner with its own optimizer and loaders: three epochs with accumulation, each with a validation."""

from __future__ import annotations

import random
from typing import Any

import torch
from fastai.callback.core import Callback  # pyright: ignore[reportMissingImports] - make field installs it
from fastai.callback.training import GradientAccumulation  # pyright: ignore[reportMissingImports] - make field installs it
from fastai.data.core import DataLoaders  # pyright: ignore[reportMissingImports] - make field installs it
from fastai.learner import Learner  # pyright: ignore[reportMissingImports] - make field installs it
from fastai.torch_core import set_seed  # pyright: ignore[reportMissingImports] - make field installs it
from torch.utils.data import Dataset

from tests.field.noted import NotedNet, NotedRows, finished, watch
from tests.field.parts import WIDTH


class Pairs(Dataset[Any]):
    """Rows with a target, since fastai wants one."""

    def __init__(self, rows: NotedRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index], torch.zeros(WIDTH)


class Losses(Callback):
    """Notes the loss of each update."""

    def after_step(self) -> None:
        """Count an update."""
        watch.losses.append(self.learn.loss.item().hex())


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean square."""
    return (output - target).square().mean()


def main() -> None:
    """Train twelve updates of two batches each."""
    set_seed(0)
    random.seed(0)
    data, valid = Pairs(NotedRows(16)), Pairs(NotedRows(4, "evaluation"))
    loaders = DataLoaders.from_dsets(data, valid, bs=2, num_workers=0, device="cpu")
    learner = Learner(loaders, NotedNet(), loss_func=loss, cbs=[GradientAccumulation(4), Losses()])
    with learner.no_bar(), learner.no_logging():
        learner.fit(3, 0.1)
    finished(len(watch.losses))


if __name__ == "__main__":
    main()
