"""Megatron-LM's backward of a pipeline stage: the C++ engine is called by the script, once a microbatch."""

from __future__ import annotations

import torch
from torch.autograd import Variable

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch

MICROBATCHES = 3


def custom_backward(output: torch.Tensor) -> None:
    """Call the engine without the checks of torch's own function."""
    Variable._execution_engine.run_backward(
        tensors=(output,),
        grad_tensors=(torch.ones_like(output),),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def main() -> None:
    """Train ten steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    batches = watch.iterator(loader(10 * MICROBATCHES))
    for _ in range(10):
        losses: list[torch.Tensor] = []
        for _micro in range(MICROBATCHES):
            batch = watch.fetch(batches)
            with watch("forward"):
                output = model(batch)
            losses.append(output.square().mean() / MICROBATCHES)
        for loss in losses:
            with watch("backward"):
                custom_backward(loss)
        with watch("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        watch.step(sum(loss.item() for loss in losses))
    watch.done()


if __name__ == "__main__":
    main()
