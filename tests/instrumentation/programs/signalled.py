"""Trains in the way that the first argument says, prints ``ready``, and goes on until a signal ends it.

The second argument is the folder for what it saves.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
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
                await asyncio.sleep(0.2)  # a second signal finds the handler too
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


def chained_in_native_code(_folder: Path) -> None:
    """Set a handler beneath Python that calls the one that it found, while training goes on."""
    for step in steps():
        if step == 5:
            faulthandler.register(signal.SIGTERM, chain=True)


def refused(folder: Path) -> None:
    """Go on after SIGTERM, which is ignored, and exit with a code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    left = 50  # what passes the signal on may be slower than the file
    for _ in steps():
        left -= (folder / "sent").exists()
        if not left:
            (folder / "saved").touch()
            sys.exit(3)


def on_a_thread(_folder: Path) -> None:
    """Train on a thread that is not the main one, as Ray's workers do."""
    stop = threading.Event()

    def train_until_told() -> None:
        for _ in steps():
            if stop.is_set():
                return

    # No daemon: Python aborts the process, with or without laggard, when such a thread is inside torch at the end.
    thread = threading.Thread(target=train_until_told)
    thread.start()
    try:
        thread.join()
    finally:
        stop.set()


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


def one_of_ranks(_folder: Path) -> None:
    """Train as a rank of a job."""
    dist.init_process_group("gloo")
    train()


def spawned(rank: int, store: str) -> None:
    """Train as a rank that torch.multiprocessing has started."""
    parent = os.getppid()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for _ in steps():
        if os.getppid() != parent:  # torch sends SIGINT then, which a shell in the background has ignored
            return


def spawn(folder: Path) -> None:
    """Start ranks and wait for them."""
    torch.multiprocessing.spawn(spawned, (str(folder / "store"),), nprocs=2)


class Batches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """What frameworks train on, in any order."""

    def __init__(self) -> None:
        self.taken = 0

    def __len__(self) -> int:
        return 10**5

    def __getitem__(self, _index: int) -> dict[str, torch.Tensor]:
        time.sleep(0.01)
        self.taken += 1
        if self.taken == 40:
            print("ready", flush=True)
        return {"x": torch.ones(4)}


class Model(torch.nn.Module):
    """What frameworks train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss as HF Trainer wants it."""
        return {"loss": self.layer(x).sum()}


def with_lightning(folder: Path) -> None:
    """Train with Lightning, whose handler calls the one that it finds and stops at the next batch."""
    import lightning  # noqa: PLC0415 - the others do without

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    class Saves(lightning.Callback):
        def on_exception(self, *_: object) -> None:
            (folder / "saved").touch()

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        max_epochs=-1, accelerator="cpu", devices=1, strategy="ddp", callbacks=[Saves()], **quiet
    )
    trainer.fit(Module(), DataLoader(Batches()))


def with_trainer(folder: Path) -> None:
    """Train with HF Trainer."""
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - the others do without

    quiet = {"disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no", "report_to": [], "use_cpu": True}
    Trainer(Model(), TrainingArguments(str(folder), max_steps=EVER, **quiet), train_dataset=Batches()).train()


def with_accelerate(_folder: Path) -> None:
    """Train with Accelerate."""
    from accelerate import Accelerator  # noqa: PLC0415 - the others do without

    accelerator = Accelerator(cpu=True)
    model = Model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(Batches())
    )
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


SHAPES = {
    "plain": lambda _folder: train(),
    "asyncio": loop_of_events,
    "asyncio_stop": stopped_by_a_loop_of_events,
    "chained": chained,
    "faulthandler": chained_in_native_code,
    "ignored": refused,
    "thread": on_a_thread,
    "workers": with_workers,
    "collective": in_a_collective,
    "checkpoint": in_a_checkpoint,
    "locked": with_the_lock,
    "rank": one_of_ranks,
    "spawn": spawn,
    "lightning": with_lightning,
    "trainer": with_trainer,
    "accelerate": with_accelerate,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    SHAPES[sys.argv[1]](Path(sys.argv[2]))
