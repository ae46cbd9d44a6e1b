"""Transforms that are modules, as torchvision's are, run inside the fetch of a loader without workers.

`no_grad()` stands inside the validation loop.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.field.parts import FETCH, Rows, network, sgd
from tests.field.stopwatch import Stopwatch


class Normalize(nn.Module):
    """A transform that takes its time."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(FETCH)
        return inputs / 2


def main() -> None:
    """Train two epochs of eight steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    transform = nn.Sequential(Normalize(), Normalize())
    training = DataLoader(Rows(16, transform=transform), batch_size=2)
    validation = DataLoader(Rows(8, transform=transform), batch_size=2)
    for _epoch in range(2):
        model.train()
        for batch in watch.batches(training):
            optimizer.zero_grad()
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            watch.step(loss)
        model.eval()
        with watch("evaluation"):
            for batch in validation:
                with torch.no_grad():
                    model(batch)
    watch.done()


if __name__ == "__main__":
    main()
