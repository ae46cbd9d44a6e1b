"""Evaluations that are harder to tell from training than a loop over a loader of their own.

`own_data`: accuracy on the training data, by the very loader. `broken_off`: after two batches, as with a limit.
`read_ahead`: broken off too, while both loops read one batch ahead. `in_between`: between the batches of one update.
`kept`: the evaluation goes on with the same iterator the next time.
With `gradients` the script does not switch them off; with `forces` it needs them, as the forces of a molecule are some.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def ahead(loader: Iterable[Any], watch: Stopwatch | None = None) -> Iterator[Any]:
    """Fetch each batch before the one before it is handed out."""
    batches = watch.iterator(loader) if watch else iter(loader)
    newest = None
    while True:
        with watch("data") if watch else nullcontext():
            following = next(batches, None)
        if newest is not None:
            yield newest
        if following is None:
            return
        newest = following


def main(kind: str, how: str = "") -> None:
    """Train three epochs of eight batches."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training, validation = loader(8), loader(20)
    kept = iter(validation)

    def evaluate() -> None:
        model.eval()
        with watch("evaluation"), torch.set_grad_enabled(how != ""):
            for batch in evaluated(kind, training, validation, kept):
                output = model(batch.requires_grad_(how == "forces"))
                if how == "forces":
                    torch.autograd.grad(output.sum(), batch)
        model.train()

    for _epoch in range(3):
        batches = ahead(training, watch) if kind == "read_ahead" else watch.batches(training)
        for number, batch in enumerate(batches):
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                loss.backward()
            if kind == "in_between" and number % 2 == 0:
                evaluate()
                continue
            with watch("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            watch.step(loss)
            if kind not in ("own_data", "in_between") and number % 4 == 2:
                evaluate()
        if kind == "own_data":
            evaluate()
    watch.done()


def evaluated(kind: str, training: Iterable[Any], validation: Iterable[Any], kept: Iterator[Any]) -> Iterator[Any]:
    """Return the batches of one evaluation."""
    if kind == "own_data":
        return iter(training)
    batches = {"read_ahead": ahead(validation), "kept": kept}.get(kind) or iter(validation)
    return itertools.islice(batches, 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
