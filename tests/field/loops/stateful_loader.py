"""torchdata's StatefulDataLoader, with as many workers as the argument says, and its state taken now and then."""

from __future__ import annotations

import sys

from torchdata.stateful_dataloader import StatefulDataLoader

from tests.field.parts import Rows, network, sgd
from tests.field.stopwatch import Stopwatch


def main(workers: int) -> None:
    """Train two epochs of eight steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    training = StatefulDataLoader(Rows(16, delay=0.004), batch_size=2, num_workers=workers)
    for _epoch in range(2):
        for number, batch in enumerate(watch.batches(training)):
            optimizer.zero_grad()
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            if number == 4:
                training.state_dict()
            watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main(int(sys.argv[1]))
