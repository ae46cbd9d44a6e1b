"""A DDP job whose first rank evaluates `model.module`: a class that is never outermost in training.

The loss is a module too, so that something outermost is found early.
"""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train three epochs of six steps."""
    distributed.init_process_group("gloo")
    watch = Stopwatch()
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    criterion = nn.MSELoss()
    training, validation = loader(6), loader(4)
    for _epoch in range(3):
        model.train()
        for batch in watch.batches(training):
            with watch("forward"):
                output = model(batch)
                loss = criterion(output, torch.zeros_like(output))
            optimizer.zero_grad()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            watch.step(loss)
        if distributed.get_rank() == 0:
            model.eval()
            with watch("evaluation"), torch.no_grad():
                for batch in validation:
                    model.module(batch)
    watch.done()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
