"""mmengine and detectron2: endless batches, a preprocessor beside the model, `train_step`, `val_step`, checkpoints."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


class Preprocessor(nn.Module):
    """Normalizes a batch; it has no parameters."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return batch - 0.1


class Detector(nn.Module):
    """Calls itself: the loop calls its steps."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch
        self.preprocessor = Preprocessor()
        self.model = network()

    def forward(self, batch: torch.Tensor, mode: str) -> torch.Tensor:
        output = self.model(batch)
        return output.square().mean() if mode == "loss" else output

    def train_step(self, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        with self._watch("forward"):
            loss = self(self.preprocessor(batch), mode="loss")
        with self._watch("backward"):
            loss.backward()
        with self._watch("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        return loss

    def val_step(self, batch: torch.Tensor) -> Any:
        return self(self.preprocessor(batch), mode="predict")


def main() -> None:
    """Train eighteen steps."""
    watch = Stopwatch()
    detector = Detector(watch)
    optimizer = sgd(detector)
    training, validation = loader(7), loader(3)
    batches = itertools.chain.from_iterable(watch.batches(training) for _ in itertools.count())
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, 19):
            watch.step(detector.train_step(next(batches), optimizer))
            if step % 6 == 0:
                with watch("checkpoint"):
                    torch.save(
                        {"model": detector.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder, "last")
                    )
                detector.eval()
                with watch("evaluation"), torch.no_grad():
                    for batch in validation:
                        detector.val_step(batch)
                detector.train()
    watch.done()


if __name__ == "__main__":
    main()
