"""Updates that are no torch optimizer's: by `hand`, as in word_language_model, or by a `class` like those of Keras."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

import torch

from tests.field.parts import UPDATE, loader, network
from tests.field.stopwatch import Stopwatch


class Momentum:
    """An optimizer that takes gradients and variables, and knows nothing of torch's."""

    def __init__(self, rate: float, momentum: float) -> None:
        self.rate = rate
        self.momentum = momentum
        self.iterations = 0
        self._velocities: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def apply(self, gradients: Iterable[torch.Tensor], variables: Sequence[torch.Tensor]) -> None:
        """Update the variables."""
        time.sleep(UPDATE)
        for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            velocity = self._velocities.setdefault(number, torch.zeros_like(variable))
            velocity.mul_(self.momentum).sub_(self.rate * gradient)
            variable.add_(velocity)
        self.iterations += 1


def main(kind: str) -> None:
    """Train for as long as it takes to be told what is missing."""
    watch = Stopwatch()
    model = network()
    parameters = list(model.parameters())
    optimizer = Momentum(0.05, 0.9)
    for batch in watch.batches(loader(112)):
        model.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with watch("optimizer"):
            if kind == "class":
                optimizer.apply(gradients, parameters)
            else:
                time.sleep(UPDATE)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.data.add_(gradient, alpha=-0.05)
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
