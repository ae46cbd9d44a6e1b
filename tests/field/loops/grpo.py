"""GRPO in the manner of trl: answers are generated inside the step, in eval mode and without gradients.

A frozen reference model judges them. Every four steps there is an evaluation that generates too.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.field.parts import host, loader, network, sgd
from tests.field.stopwatch import Stopwatch


def generate(model: nn.Module, prompt: torch.Tensor) -> torch.Tensor:
    """Extend the prompt step by step."""
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            prompt = prompt + model(prompt)
    model.train()
    return prompt


def main() -> None:
    """Train twelve steps."""
    watch = Stopwatch()
    model, reference = network(0), network(1).eval()
    optimizer = sgd(model)
    validation = loader(2)
    for number, prompt in enumerate(watch.batches(loader(12))):
        with watch("forward"):
            answer = generate(model, prompt)
        host()  # the reward
        with torch.no_grad(), watch("forward"):
            usual = reference(answer)
        with watch("forward"):
            output = model(answer)
        loss = (output - usual).square().mean()
        optimizer.zero_grad()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizer.step()
        watch.step(loss)
        if number % 4 == 3:
            with watch("evaluation"):
                for batch in validation:
                    generate(model, batch)
    watch.done()


if __name__ == "__main__":
    main()
