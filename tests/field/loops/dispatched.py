"""Accelerate's dispatch_batches: the first rank fetches for all and broadcasts to the others."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train two epochs of six steps."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    watch = Stopwatch()
    raw = network()
    model, optimizer, training = accelerator.prepare(raw, sgd(raw), loader(12))
    for _epoch in range(2):
        for batch in watch.batches(training):
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                accelerator.backward(loss)
            with watch("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            watch.step(loss)
    watch.done()
    accelerator.end_training()


if __name__ == "__main__":
    main()
