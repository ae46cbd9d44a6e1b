"""A rank of a job that trains with DistributedDataParallel, of which one rank ends as the argument says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents them
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

CULPRIT = 1
#: So long it trains before: its node exporter has seen it by then.
_SECONDS = 4.0


def _raise() -> None:
    raise ValueError("the culprit's own error")


ENDS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": _raise,
    "teardown": _raise,
    "spawn": _raise,
    "exit": lambda: sys.exit(3),
    "leave": lambda: os._exit(7),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "hang": lambda: time.sleep(600),
    "restart": lambda: os.kill(os.getpid(), signal.SIGKILL) if not _restarts() else None,
}


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextlib.contextmanager
def _group(how: str) -> Iterator[None]:
    if how == "restart":
        # torchrun keeps the store of the incarnation before, in which gloo finds addresses of ranks that are gone.
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = PrefixStore(str(_restarts()), store)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    else:
        # Who waits for one that hangs gives up after this time, and its launcher ends the other.
        distributed.init_process_group("gloo", timeout=timedelta(seconds=30 if how == "hang" else 1800))
    try:
        yield
    finally:
        # As most scripts have it: who fails ends the group before its exception is told.
        if how == "teardown":
            distributed.destroy_process_group()


def train(how: str) -> None:
    """Train until the end."""
    with _group(how):
        model = DistributedDataParallel(torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        end = time.monotonic() + _SECONDS
        while how == "request" or time.monotonic() < end + 2:
            optimizer.zero_grad()
            model(torch.ones(8, 16)).sum().backward()
            optimizer.step()
            time.sleep(0.02)
            stop = torch.tensor(float(time.monotonic() > end))
            distributed.all_reduce(stop)
            if stop and distributed.get_rank() == CULPRIT and how in ENDS:
                ENDS[how]()
            if stop and (how == "clean" or _restarts()):
                return


def _spawned(rank: int, port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
    train("spawn")


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        spawn(_spawned, (sys.argv[2],), 2)
    else:
        train(sys.argv[1])
