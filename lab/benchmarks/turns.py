"""A long step with laggard's hooks and without them, in turns of one process, by what it takes beside its work.

    python lab/benchmarks/turns.py MILLISECONDS

It prints a line when it has warmed up. Then ``turns N`` on standard input trains with the hooks and without them N
times, and is answered with a line of JSON.

From one process to the next, and from one step to the next, a step of 30 ms differs by far more than what is asked for
here. What the hooks add does not depend on what the work computes, only on the caches that it leaves cold. So the work
stands where a training step has it (inside the fetch, the forward, the backward and the optimizer's step), as one
multiplication of matrices each, and the clock is stopped while it runs. What is compared is all the rest of the step,
in processor time of the training thread: that clock stands still while others have the processor. The hooks are taken
out and put back between stretches of steps of one process, and each stretch is compared with the one beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from time import thread_time_ns
from typing import Any

import loop
import torch
from switch import Switch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from laggard import _process

#: Steps of a stretch; the one before them is not counted. What else the machine does changes from second to second, so
#: that short stretches are compared within a state of it.
STEPS = 3
#: Steps before the first stretch, among them those after which rare work of the drain has been done once.
WARMUP = 90
#: Places of the work in a step.
PLACES = 4
WIDTH = 32


class Work:
    """A multiplication that takes about so many milliseconds, and the time that passes between its calls."""

    def __init__(self, milliseconds: float) -> None:
        self._square = torch.ones(1024, 1024)
        self._columns = torch.ones(1024, 256)
        self._product = self._square @ self._columns
        #: Nanoseconds between the works since these were last set to 0, and of the works.
        self.between = self.inside = self._ended = 0
        took = []
        for _ in range(30):
            self.inside = 0
            self()
            took.append(self.inside)
        columns = round(256 * milliseconds * 1e6 / statistics.median(took))
        self._columns = torch.ones(1024, columns)
        self._product = torch.ones(1024, columns)

    def __call__(self) -> None:
        """Work, with the clock stopped."""
        began = thread_time_ns()
        self.between += began - self._ended
        torch.mm(self._square, self._columns, out=self._product)
        self._ended = thread_time_ns()
        self.inside += self._ended - began


class Batches(IterableDataset[torch.Tensor]):
    """Batches without end, each of which is work."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self._work()
            yield torch.ones(1, WIDTH)


class WorkInBackward(torch.autograd.Function):
    """Changes nothing, and works in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Work) -> torch.Tensor:
        """Keep the work for later."""
        ctx.work = work
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Work."""
        ctx.work()
        return *gradients, None


class Model(nn.Module):
    """One layer, with work in forward and backward."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform ``x`` of shape (batch, width)."""
        y = self.layer(x)
        self._work()
        return WorkInBackward.apply(y, self._work)


class Optimizer(torch.optim.SGD):
    """Works before it updates."""

    work: Work

    def step(self, closure: Any = None) -> Any:
        """Make an update."""
        self.work()
        return super().step(closure)


def main() -> None:
    """Train as asked for."""
    milliseconds = float(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loop.export_nowhere()
    _process.instrument()
    process = _process.current()
    assert process is not None
    work = Work(milliseconds / PLACES)
    model = Model(work)
    optimizer = Optimizer(model.parameters(), lr=1e-4)
    optimizer.work = work
    supply = iter(DataLoader(Batches(work), batch_size=None))

    def train() -> tuple[float, float]:
        """Return the microseconds of a step beside its work, and those of all of it."""
        work.between = work.inside = 0
        model(next(supply)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return work.between / 1000, (work.between + work.inside) / 1000

    for _ in range(WARMUP):
        train()
    switch = Switch(process)

    def stretch(on: bool) -> tuple[float, float]:  # noqa: FBT001 - a switch
        switch.turn(on)
        train()
        beside, all_of_it = zip(*(train() for _ in range(STEPS)), strict=True)
        return min(beside), min(all_of_it)

    print("ready", flush=True)
    turn = 0
    for line in sys.stdin:
        found: dict[str, list[tuple[float, float]]] = {"bare": [], "laggard": []}
        for _ in range(int(line.split()[1])):
            # Who comes first changes, so that a trend cancels.
            turn += 1
            for name in ("bare", "laggard") if turn % 2 else ("laggard", "bare"):
                found[name].append(stretch(name == "laggard"))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAGGARD_STATE_DIR"] = folder
        os.environ["LAGGARD_RUN"] = "bench"
        main()
