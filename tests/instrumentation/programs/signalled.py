"""Trains in the way that the first argument says, prints ``ready``, and goes on until a signal ends it.

The second argument is the folder for what it saves.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

EVER = 10**9


def steps() -> Iterator[int]:
    """Take a step of training each time that the next is asked for."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(EVER):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
        if step == 20:
            print("ready", flush=True)
        yield step


def train() -> None:
    """Train for ever."""
    for _ in steps():
        pass


def loop_of_events(folder: Path) -> None:
    """Have an event loop with a signal handler for a while, then train."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, folder.touch)
        await asyncio.sleep(0.05)
        loop.remove_signal_handler(signal.SIGTERM)
        # Python's default action is back, and a drain later it is delayed again.
        await asyncio.sleep(1.5)

    progress = steps()
    next(progress)
    asyncio.run(main())
    for _ in progress:
        pass


def stopped_by_a_loop_of_events(folder: Path) -> None:
    """Train inside an event loop, until its handler for SIGTERM says to save and stop."""

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        for _ in steps():
            await asyncio.sleep(0)
            if stop.is_set():
                (folder / "saved").touch()
                return

    asyncio.run(main())


def chained(folder: Path) -> None:
    """Set a handler that saves and stops, and calls the one that it found, while training goes on."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    stop: list[int] = []
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: object) -> None:
        stop.append(number)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, handle)
    for _ in steps():
        if stop:
            (folder / "saved").touch()
            return


def refused(folder: Path) -> None:
    """Go on for a while after SIGTERM, which is ignored, and exit with a code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in steps():
        if step == 80:
            (folder / "saved").touch()
            sys.exit(3)


def on_a_thread(_folder: Path) -> None:
    """Train on a thread that is not the main one, as Ray's workers do."""
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    thread.join()


def with_workers(_folder: Path) -> None:
    """Train with data workers running."""
    progress = steps()
    for _ in DataLoader(TensorDataset(torch.ones(10**5, 1)), num_workers=2):
        next(progress)


def in_a_collective(_folder: Path) -> None:
    """Wait in a collective for a rank that never comes."""
    dist.init_process_group("gloo")
    progress = steps()
    for _ in range(20):
        next(progress)
    dist.barrier()
    if dist.get_rank():
        time.sleep(60)
    threading.Timer(0.3, print, ["ready"], {"flush": True}).start()
    dist.all_reduce(torch.ones(2))


def in_a_checkpoint(folder: Path) -> None:
    """Save one checkpoint after the other."""
    weights = torch.ones(1 << 22)
    for _ in steps():
        torch.save(weights, folder / "checkpoint")


def with_the_lock(_folder: Path) -> None:
    """Never leave native code that holds the interpreter lock."""
    progress = steps()
    for _ in range(21):
        next(progress)
    time.sleep(0.5)
    library = ctypes.PyDLL(None)
    lock = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


SHAPES = {
    "plain": lambda _folder: train(),
    "asyncio": loop_of_events,
    "asyncio_stop": stopped_by_a_loop_of_events,
    "chained": chained,
    "ignored": refused,
    "thread": on_a_thread,
    "workers": with_workers,
    "collective": in_a_collective,
    "checkpoint": in_a_checkpoint,
    "locked": with_the_lock,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    SHAPES[sys.argv[1]](Path(sys.argv[2]))
