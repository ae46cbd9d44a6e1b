"""A loop that makes an iterator for each batch: `next(iter(loader))`."""

from __future__ import annotations

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train twelve steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training = loader(4, shuffle=True)
    for _ in range(12):
        batch = watch.fetch(watch.iterator(training))
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main()
