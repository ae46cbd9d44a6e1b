"""A loader that a thread of the script reads ahead, in the manner of MONAI, fairseq and prefetch_generator."""

from __future__ import annotations

import queue
import threading
from typing import Any

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train sixteen steps, each of which waits for data."""
    watch = Stopwatch()
    model = network(forward=0.001, backward=0.002)
    optimizer = sgd(model)
    read: queue.Queue[Any] = queue.Queue(2)

    def read_ahead() -> None:
        for batch in loader(16, delay=0.008):
            read.put(batch)
        read.put(None)

    threading.Thread(target=read_ahead, daemon=True).start()
    while True:
        with watch("data"):
            batch = read.get()
        if batch is None:
            break
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
