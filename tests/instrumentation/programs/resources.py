"""One process trains with data workers and writes checkpoints of every kind. Prints what its own clock says.

Arguments: how workers start, a folder, and ``wait`` to stay instead of ending. Nothing in here knows of laggard.
"""

# ruff: noqa: E402 - garbage is collected by hand from the first import on

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

gc.disable()  # so that every collection is one that stands below

import torch
from torch import nn
from torch.distributed import checkpoint
from torch.utils.data import DataLoader, Dataset

STEPS = 12
GARBAGE_STEP = 16


class Items(Dataset[torch.Tensor]):
    """Items that take 10 ms each."""

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.ones(4)


class SlowToPickle:
    """Takes 100 ms to write."""

    def __reduce__(self) -> Any:
        time.sleep(0.1)
        return (dict, ())


class Stopwatch:
    """Calls things and adds up what they took, as a user would see it."""

    def __init__(self) -> None:
        self.step = 0
        self.seconds = {"save": 0.0, "load": 0.0, "gc": 0.0, "inside": 0.0}
        self.counts = {"save": 0, "load": 0, "gc": 0}

    def __call__(self, name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Call, and count."""
        began = time.perf_counter()
        result = call(*args, **kwargs)
        took = time.perf_counter() - began
        self.seconds[name] += took
        self.counts[name] += 1
        if name == "save" and self.step:
            self.seconds["inside"] += took
        return result


def collect_garbage() -> None:
    """Make the collector work for a while."""
    garbage = [[] for _ in range(200_000)]
    for cycle in garbage:
        cycle.append(garbage)
    del garbage, cycle


def between_steps(timed: Stopwatch, state: dict[str, Any], folder: Path) -> None:
    """What a script does after some of its steps."""
    torch.save(dict(state), io.BytesIO())  # a copy, not a checkpoint
    time.sleep(0.06)
    if timed.step == 5:
        timed("save", torch.save, {"model": state, "slow": SlowToPickle()}, folder / "plain.pt")
    if timed.step == 7:
        with (folder / "opened.pt").open("wb") as file:
            timed("save", torch.save, state, file)
    if timed.step == 8:
        timed("save", checkpoint.save, state, checkpoint_id=folder / "dcp", no_dist=True)
    if timed.step == 9:
        uploads.append(timed("save", checkpoint.async_save, state, checkpoint_id=folder / "async", no_dist=True))
    if timed.step == GARBAGE_STEP:
        uploads[0].result()
        collect_garbage()
        timed("gc", gc.collect)


def main() -> None:
    """Train two epochs and the first batch of a third."""
    context, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    timed = Stopwatch()
    timed("save", torch.save, model.state_dict(), folder / "first.pt")
    timed("load", torch.load, folder / "first.pt")
    loader = DataLoader(Items(), batch_size=2, num_workers=2, multiprocessing_context=context, persistent_workers=True)
    kept.append(loader)
    for epoch in range(3):
        for batch in loader:
            timed.step += 1
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            between_steps(timed, model.state_dict(), folder)
            if epoch == 2:
                break
    for generation, times in ((0, 3), (1, 2)):
        for _ in range(times):
            gc.collect(generation)
    time.sleep(0.5)  # all that workers may do ahead is done
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    workers = [child.pid for child in multiprocessing.active_children()]
    print(json.dumps({**timed.seconds, "counts": timed.counts, "resident": resident, "workers": workers}), flush=True)
    if "wait" in sys.argv:
        time.sleep(60)


#: Keeps the last iterator and its workers to the end of the process.
kept: list[Any] = []
uploads: list[Any] = []

if __name__ == "__main__":
    main()
