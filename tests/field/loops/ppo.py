"""PPO in the manner of cleanrl: a rollout without gradients, then epochs of minibatches over it.

The argument says how minibatches are cut: by `hand`, or by a `loader` that is made for each rollout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.field.parts import WIDTH, host, network, sgd
from tests.field.stopwatch import Stopwatch


def main(minibatches: str) -> None:
    """Train five rollouts with four updates each."""
    watch = Stopwatch()
    agent = network()
    optimizer = sgd(agent)

    def cut(seen: torch.Tensor) -> Iterator[Any]:
        if minibatches == "loader":
            loader = DataLoader(seen, batch_size=4)  # pyright: ignore[reportArgumentType] - a tensor will do
            yield from watch.batches(loader)
        else:
            yield from seen.split(4)

    for rollout in range(5):
        observations: list[torch.Tensor] = []
        observed = torch.full((1, WIDTH), float(rollout))
        for _ in range(8):
            observations.append(observed)
            with torch.no_grad(), watch("forward"):
                action = agent(observed)
            host(0.002)
            observed = observed + action
        for _epoch in range(2):
            for batch in cut(torch.cat(observations)):
                with watch("forward"):
                    output = agent(batch)
                loss = output.square().mean()
                optimizer.zero_grad()
                with watch("backward"):
                    loss.backward()
                with watch("optimizer"):
                    optimizer.step()
                watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
