"""LBFGS: an update evaluates the model several times, in a closure, over all of the data."""

from __future__ import annotations

import torch

from tests.field.parts import WIDTH, host, network
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train eight steps, with a look at the test data after each."""
    watch = Stopwatch()
    model = network(forward=0.002, backward=0.003)
    rows = torch.sin(torch.arange(8 * WIDTH, dtype=torch.float32)).reshape(8, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for _ in range(8):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            with watch("forward"):
                output = model(rows)
            loss = (output - 1).square().mean()
            with watch("backward"):
                loss.backward()
            return loss

        with watch("optimizer"):
            loss = optimizer.step(closure)
        watch.step(loss)
        host()
        model.eval()
        with torch.no_grad(), watch("evaluation"):
            model(rows)
        model.train()
    watch.done()


if __name__ == "__main__":
    main()
