"""timm: a task wraps model and loss in training; after each epoch the EMA copy is evaluated, a class of its own."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


class Task(nn.Module):
    """A model and its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.criterion = nn.MSELoss()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output = self.model(inputs)
        return self.criterion(output, torch.zeros_like(output))


def main() -> None:
    """Train three epochs of six steps."""
    watch = Stopwatch()
    model = network()
    task = Task(model)
    average = copy.deepcopy(model).eval()
    optimizer = sgd(model)
    criterion = nn.MSELoss()
    training, validation = loader(6), loader(4)
    for _epoch in range(3):
        task.train()
        for batch in watch.batches(training):
            with watch("forward"):
                loss = task(batch)
            optimizer.zero_grad()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            with torch.no_grad():
                for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(parameter, 0.1)
            watch.step(loss)
        for evaluated in (model.eval(), average):
            with watch("evaluation"), torch.no_grad():
                for batch in validation:
                    output = evaluated(batch)
                    criterion(output, torch.zeros_like(output))
    watch.done()


if __name__ == "__main__":
    main()
