"""Knowledge distillation: a frozen teacher in eval mode, called without gradients in each step.

The argument says whether batches come from a `loader`, or by `hand` with the teacher between the student's forward and
its backward.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from tests.field.parts import host, loader, network, sample, sgd
from tests.field.stopwatch import Stopwatch


def main(source: str) -> None:
    """Train twelve steps."""
    watch = Stopwatch()
    student, teacher = network(0), network(1).eval()
    optimizer = sgd(student)

    def by_hand() -> Iterator[torch.Tensor]:
        for number in range(12):
            host()
            yield sample(number)

    def teach(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), watch("forward"):
            return teacher(batch)

    for batch in watch.batches(loader(12)) if source == "loader" else by_hand():
        wanted = teach(batch) if source == "loader" else None
        with watch("forward"):
            output = student(batch)
        wanted = teach(batch) if wanted is None else wanted
        loss = (output - wanted).square().mean()
        optimizer.zero_grad()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
