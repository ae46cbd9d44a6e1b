"""OpenRLHF and verl: a loader of prompts, a rollout by three models, then updates with what was rolled out.

`loaders`: critic and actor each have a loader of their own for each rollout. `split`: the batch is cut by hand, and
critic and actor take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.field.parts import host, loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main(kind: str) -> None:
    """Train four batches of prompts with four updates each."""
    watch = Stopwatch()
    actor, critic = network(0), network(1)
    reference = network(2).eval()
    optimizers = {"critic": sgd(critic), "actor": sgd(actor)}

    def parts(experience: torch.Tensor) -> Iterator[Any]:
        if kind == "loaders":
            over: Any = experience  # a tensor will do
            yield from watch.batches(DataLoader(over, batch_size=4))
        else:
            yield from experience.split(4)

    def train(name: str, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with watch("forward"):
            output = model(batch)
        loss = output.square().mean()
        optimizers[name].zero_grad()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizers[name].step()
        return loss

    for prompts in watch.batches(loader(4)):
        experience = prompts
        with torch.no_grad():
            for _ in range(3):
                with watch("forward"):
                    answer = actor(experience[-2:])
                experience = torch.cat([experience, experience[-2:] + answer])
            host()
            with watch("forward"):
                reference(experience)
            with watch("forward"):
                critic(experience)
        if kind == "loaders":
            for name, model in (("critic", critic), ("actor", actor)):
                for batch in parts(experience):
                    watch.step(train(name, model, batch))
        else:
            for batch in parts(experience):
                train("critic", critic, batch)
                watch.step(train("actor", actor, batch))
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
