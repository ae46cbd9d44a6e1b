"""Mixed precision with a gradient scaler that leaves some updates out."""

from __future__ import annotations

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train twelve steps; three of them meet gradients that are not finite."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number, batch in enumerate(watch.batches(loader(12))):
        optimizer.zero_grad()
        with watch("forward"), torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(batch)
        loss = output.float().square().mean()
        if number in (2, 5, 6):
            loss = loss * float("inf")
        scaled = scaler.scale(loss)
        with watch("backward"):
            scaled.backward()
        with watch("optimizer"):
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with watch("optimizer"):
            scaler.step(optimizer)
            scaler.update()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main()
