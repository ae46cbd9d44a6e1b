"""Lightning's loop: a sanity check of the validation first, a validation each epoch, checkpoints through memory.

Forward and backward run in a closure of the optimizer's step.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.field.parts import host, loader, network, sgd
from tests.field.stopwatch import Stopwatch


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint into memory, and from there to a file."""
    content = io.BytesIO()
    torch.save(state, content)
    with path.open("wb") as file:
        file.write(content.getvalue())
        file.flush()
        os.fsync(file.fileno())


def validate(watch: Stopwatch, model: nn.Module, batches: Any, limit: int) -> None:
    """Go through the first batches of the validation data."""
    model.eval()
    with watch("evaluation"), torch.no_grad():
        for number, batch in enumerate(batches):
            model(batch)
            if number + 1 == limit:
                break
    model.train()


def main() -> None:
    """Train three epochs of six steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    ballast = torch.zeros(4_000_000)
    training, validation = loader(6), loader(4)
    validate(watch, model, validation, 2)
    with tempfile.TemporaryDirectory() as folder:
        for _epoch in range(3):
            for batch in watch.batches(training):

                def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                    optimizer.zero_grad()
                    with watch("forward"):
                        output = model(batch)
                    loss = output.square().mean()
                    with watch("backward"):
                        loss.backward()
                    return loss

                with watch("optimizer"):
                    loss = optimizer.step(
                        closure  # pyright: ignore[reportCallIssue, reportArgumentType] - it gives a tensor
                    )
                host(0.002)
                watch.step(loss)
            validate(watch, model, validation, 4)
            with watch("checkpoint"):
                save(Path(folder, "last.ckpt"), {"model": model.state_dict(), "ballast": ballast})
    watch.done()


if __name__ == "__main__":
    main()
