"""One rank of a job that is about to break: an ordinary training loop, and places at which things go wrong.

Started as a program of its own, with what a launcher sets (``RANK`` and the like). ``CHAOS_FOLDER`` is where it looks
for the sign to break, and writes when it did and its losses; ``CHAOS_BREAKAGE`` and ``CHAOS_CULPRIT`` say what breaks,
and on which rank. Nothing here knows of laggard.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from lab.chaos.breakages import BREAKAGES, LeaveError

_WIDTH = 32
_SAMPLES = 4096
_BATCH = 4


class Breaker:
    """Breaks the rank at its place, once the file ``break`` is there; says so in the file ``broken``."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        breakage = BREAKAGES.get(os.environ.get("CHAOS_BREAKAGE", ""))
        self._breakage = breakage if os.environ.get("CHAOS_CULPRIT", "") in (str(rank), "all") else None
        self._done = False

    def at(self, place: str) -> None:
        """Break, if this is the place and the time."""
        if self._breakage is None or self._breakage.place != place or self._done:
            return
        if (self._folder / "break").exists():
            self._done = True
            (self._folder / "broken").write_text(str(time.time()))
            self._breakage.happen(self._folder)


class Numbers(Dataset[torch.Tensor]):
    """Vectors that follow from their index."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, item: int) -> torch.Tensor:
        if get_worker_info() is not None:
            self._breaker.at("worker")
        return torch.sin(torch.arange(_WIDTH) * (item + 1))


class Model(nn.Module):
    """Two layers, with a place in forward and one in backward."""

    def __init__(self, breaker: Breaker) -> None:
        super().__init__()
        self._breaker = breaker
        self.layers = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform ``x`` of shape (batch, width)."""
        self._breaker.at("forward")
        y = self.layers(x)
        if y.requires_grad:
            y.register_hook(lambda _: self._breaker.at("backward"))
        return y


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of each step in which nothing is computed")
    parser.add_argument(
        "--linger", type=float, default=0.0, help="seconds that each rank ends later than the one before"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(os.environ["CHAOS_FOLDER"])
    breaker = Breaker(folder, rank)
    losses: list[str] = []
    # Who leaves early goes on to what comes after training, and others are in training still.
    with contextlib.suppress(LeaveError):
        _train(arguments, breaker, folder, losses)
    (folder / f"losses{rank}").write_text(json.dumps(losses))
    if os.environ.get("CHAOS_BREAKAGE") == "left-early":
        time.sleep(600)
    dist.destroy_process_group()
    time.sleep(arguments.linger * rank)


def _train(arguments: argparse.Namespace, breaker: Breaker, folder: Path, losses: list[str]) -> None:
    numbers = Numbers(breaker)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(numbers, shuffle=False)
    loader = DataLoader(numbers, _BATCH, sampler=sampler, num_workers=1, persistent_workers=True)
    held_out = DataLoader(numbers, _BATCH, num_workers=0)
    model = DistributedDataParallel(Model(breaker))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: breaker.at("optimizer"))
    step = 0
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
            step += 1
            if step == 1:
                keep_sockets(folder)
            if step % 50 == 0:
                _evaluate(model, held_out, breaker)
            breaker.at("between")
            time.sleep(arguments.pause)
            if step == arguments.steps:
                return


def _evaluate(model: nn.Module, loader: DataLoader[torch.Tensor], breaker: Breaker) -> None:
    model.eval()
    with torch.no_grad():
        for batch in itertools.islice(loader, 4):
            model(batch)
            breaker.at("evaluation")
    model.train()


def keep_sockets(folder: Path) -> None:
    """Have a child keep the rank's connections open, as helpers of many scripts do.

    With gloo all ranks fail as soon as the connection to one of them ends; with NCCL they wait. So they wait here.
    """
    (folder / "started").touch()
    if os.fork() == 0:
        deadline = time.monotonic() + 600
        while folder.exists() and time.monotonic() < deadline:
            time.sleep(0.5)
        os._exit(0)


if __name__ == "__main__":
    # A rank that raised is gone; threads that do not end must not hold it, but for the fault that is just that.
    threading.excepthook = lambda _: None
    main()
