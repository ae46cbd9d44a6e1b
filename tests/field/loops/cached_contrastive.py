"""Cached losses of sentence-transformers: embeddings without gradients, then forwards inside the backward pass."""

from __future__ import annotations

from typing import Any

import torch

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train two epochs of seven batches of four, two rows at a time, with an evaluation after each."""
    watch = Stopwatch()
    model = network(forward=0.002, backward=0.003)
    optimizer = sgd(model)
    training, validation = loader(7, batch_size=4), loader(3)
    for _epoch in range(2):
        for batch in watch.batches(training):
            parts = batch.split(2)
            with watch("forward"), torch.no_grad():
                cached = [model(part) for part in parts]
            embeddings = [embedding.detach().requires_grad_() for embedding in cached]

            def again(_gradient: Any, parts: Any = parts, embeddings: Any = embeddings) -> None:
                with torch.enable_grad():
                    for part, embedding in zip(parts, embeddings, strict=True):
                        (model(part) * embedding.grad).sum().backward()

            loss = torch.cat(embeddings).square().mean()
            with watch("backward"):
                gradients = torch.autograd.grad(loss, embeddings)
            for embedding, gradient in zip(embeddings, gradients, strict=True):
                embedding.grad = gradient
            loss = loss.detach().requires_grad_()
            loss.register_hook(again)
            optimizer.zero_grad()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            watch.step(loss)
        model.eval()
        with watch("evaluation"), torch.no_grad():
            for batch in validation:
                model(batch)
        model.train()
    watch.done()


if __name__ == "__main__":
    main()
