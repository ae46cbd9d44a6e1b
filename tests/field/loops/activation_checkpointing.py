"""Blocks whose activations are computed again in backward; the argument chooses torch's way, `reentrant` or not."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.field.parts import Block, loader, sgd
from tests.field.stopwatch import Stopwatch


class Deep(nn.Module):
    """Blocks that keep no activations."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(forward=0.003, backward=0.002) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=self.reentrant)
        return inputs


def main(kind: str) -> None:
    """Train twelve steps."""
    watch = Stopwatch()
    torch.manual_seed(0)
    model = Deep(reentrant=kind == "reentrant")
    optimizer = sgd(model)
    for batch in watch.batches(loader(12)):
        batch.requires_grad_()
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
    main(sys.argv[1])
