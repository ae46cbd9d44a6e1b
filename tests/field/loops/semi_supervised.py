"""FixMatch: a labelled and an unlabelled loader, and pseudo-labels by a forward without gradients.

The argument says where the pseudo-labels are made: `between` the two fetches, or `after` both. An evaluation follows
each fourth step.
"""

from __future__ import annotations

import sys

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main(place: str) -> None:
    """Train sixteen steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    labelled, unlabelled = watch.iterator(loader(16)), watch.iterator(loader(16, batch_size=4))
    validation = loader(3)

    def pseudo_labels(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), watch("forward"):
            return model(batch)

    for number in range(16):
        if place == "between":
            weak = watch.fetch(unlabelled)
            wanted = pseudo_labels(weak)
            known = watch.fetch(labelled)
        else:
            known = watch.fetch(labelled)
            weak = watch.fetch(unlabelled)
            wanted = pseudo_labels(weak)
        with watch("forward"):
            output = model(torch.cat([known, weak]))
        loss = output[: len(known)].square().mean() + (output[len(known) :] - wanted).square().mean()
        optimizer.zero_grad()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
        if number % 4 == 3:
            model.eval()
            with watch("evaluation"), torch.no_grad():
                for batch in validation:
                    model(batch)
            model.train()
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
