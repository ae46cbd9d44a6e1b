"""Small data: the loss of a whole pass over the loader is summed, and backward follows its end."""

from __future__ import annotations

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train eight passes of three batches, with a validation that does not switch gradients off after every second."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training, validation = loader(3), loader(2)
    for number in range(8):
        optimizer.zero_grad()
        loss = torch.zeros(())
        for batch in watch.batches(training):
            with watch("forward"):
                output = model(batch)
            loss = loss + output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
        if number % 2:
            model.eval()
            with watch("evaluation"):
                for batch in validation:
                    model(batch)
            model.train()
    watch.done()


if __name__ == "__main__":
    main()
