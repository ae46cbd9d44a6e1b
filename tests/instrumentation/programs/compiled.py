"""Train steps that are compiled as a whole, in a process that imports the compiler after it was instrumented."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager", dynamic=False)
def train(rows: torch.Tensor) -> torch.Tensor:
    """Forward, backward, update."""
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for batch in DataLoader(torch.randn(11, 4), batch_size=2):  # the last one has another shape
    train(batch)

from torch._dynamo import utils, variables  # noqa: E402 - the compiler is there now

call = nn.Module._wrapped_call_impl
print(utils.unpatched_nn_module_call is call, variables.nn_module.unpatched_nn_module_call is call)
