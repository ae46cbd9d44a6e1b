"""Each step on another thread of a pool, as `asyncio.to_thread` has it; or learners with a lock, as IMPALA's."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.field.parts import WIDTH, host, loader, network, sgd
from tests.field.stopwatch import Stopwatch

STEPS = 24


def main(kind: str) -> None:
    """Train."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    batches = watch.iterator(loader(STEPS))
    lock = threading.Lock()

    def step() -> None:
        with lock:
            batch = watch.fetch(batches) if kind == "pool" else torch.ones(2, WIDTH)
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            optimizer.zero_grad()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            watch.step(loss)

    def learn() -> None:
        for _ in range(STEPS // 2):
            step()

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        if kind == "pool":
            for number in range(STEPS):
                (first, second)[number % 2].submit(step).result()
                host()
        else:
            for learner in [first.submit(learn), second.submit(learn)]:
                learner.result()
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
