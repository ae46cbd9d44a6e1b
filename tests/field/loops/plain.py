"""One fetch, forward, backward and update a step, and host work: as in torch's own examples."""

from __future__ import annotations

from tests.field.parts import host, loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    for batch in watch.batches(loader(12)):
        optimizer.zero_grad()
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        host()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main()
