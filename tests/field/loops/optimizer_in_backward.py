"""torchtune: each parameter has an optimizer, which updates it inside backward, as soon as its gradient is there."""

from __future__ import annotations

import time
from typing import Any

import torch

from tests.field.parts import UPDATE, loader, network
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train two epochs of eight batches, each with an evaluation after it."""
    watch = Stopwatch()
    model = network()
    parameters = list(model.parameters())
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.05) for parameter in parameters}
    for optimizer in optimizers.values():
        optimizer.register_step_pre_hook(lambda *_: time.sleep(UPDATE / 4))

    def update(parameter: Any) -> None:
        with watch("optimizer"):
            optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(update)
    training, validation = loader(8), loader(4)
    for _epoch in range(2):
        for batch in watch.batches(training):
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                loss.backward()
            watch.step(loss)
        model.eval()
        with watch("evaluation"), torch.no_grad():
            for batch in validation:
                model(batch)
        model.train()
    watch.done()


if __name__ == "__main__":
    main()
