"""nanoGPT: batches by hand, DDP with accumulation, and an evaluation in eval mode on the first rank only."""

from __future__ import annotations

import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.field.parts import FETCH, WIDTH, network, sgd
from tests.field.stopwatch import Stopwatch

ACCUMULATED = 2
EVALUATE_EVERY = 4


def get_batch(split: str) -> torch.Tensor:
    """Return random rows; those of the training data come from slow storage."""
    if split == "train":
        time.sleep(FETCH)
    return torch.randn(4, WIDTH)


def main() -> None:
    """Train twelve steps."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    watch = Stopwatch()
    raw = network()
    model = DistributedDataParallel(raw)
    optimizer = sgd(raw)
    torch.manual_seed(rank)
    batch = get_batch("train")
    for number in range(12):
        if number % EVALUATE_EVERY == 0 and rank == 0:
            raw.eval()
            with torch.no_grad():
                for _ in range(3):
                    rows = get_batch("val")
                    with watch("evaluation"):
                        model(rows)
            raw.train()
        total = 0.0
        for micro in range(ACCUMULATED):
            model.require_backward_grad_sync = micro == ACCUMULATED - 1
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean() / ACCUMULATED
            batch = get_batch("train")
            with watch("backward"):
                loss.backward()
            total += loss.item()
        with watch("optimizer"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch.step(total)
    watch.done()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
