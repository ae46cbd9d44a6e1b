"""One process trains a small model and ends in the way that the first argument says."""

from __future__ import annotations

import code
import ctypes
import functools
import multiprocessing
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from laggard import _process


def main() -> None:
    """Train for a few epochs, then end."""
    ending = sys.argv[1]
    context = sys.argv[2] if len(sys.argv) > 2 else None
    torch.set_num_threads(1)
    if ending in ("destroy", "abort", "caught", "restarted"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    workers = {"num_workers": 1, "multiprocessing_context": context} if context else {}
    loader = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=4, **workers)
    for _epoch in range(3):
        for (batch,) in loader:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if ending == "restarted" and dist.is_initialized():
                _destroy_elsewhere()
            # Long enough for an export interval to pass in a worker that would export.
            time.sleep(0.05)
    print(f"trained {loss.item():.6f}", flush=True)
    end(ending)


def fail(ending: str) -> None:
    """End in one of the ways that are no clean end, where one is named."""
    if ending == "raise":
        raise RuntimeError("on purpose")
    if ending == "exit":
        sys.exit(3)
    if ending == "message":
        sys.exit("on purpose")
    if ending == "at once":
        os._exit(4)
    if ending == "finally":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            raise KeyError("on purpose")
        finally:
            dist.destroy_process_group()
            time.sleep(1.5)  # a drain
    if ending == "abort":
        _destroy_elsewhere()
        os._exit(4)
    if ending == "restarted":
        time.sleep(1.5)  # a drain
        os._exit(4)
    if ending == "caught":
        process = _process.current()
        assert process is not None
        process.training_failed(KeyError("on purpose"))
        _destroy_elsewhere()
        sys.exit(0)


def _destroy_elsewhere() -> None:
    """Destroy the process group as a watchdog does, or whoever cleans up: in a thread that does not train."""
    thread = threading.Thread(target=dist.destroy_process_group)
    thread.start()
    thread.join()
    print("destroyed", flush=True)


def end(ending: str) -> None:
    """End in one of many ways."""
    fail(ending)
    if ending == "destroy":
        dist.destroy_process_group()
        print("destroyed", flush=True)
    if ending in ("wait", "destroy"):
        time.sleep(60)
    if ending == "prompt":
        code.interact(readfunc=functools.partial(next, iter(("no_such_name", "exit()"))))
    if ending == "stuck":
        # Never returns to the interpreter, so no signal handler of Python's runs; the interpreter lock is free.
        libc = ctypes.CDLL(None)
        while True:
            lock = ctypes.create_string_buffer(64)
            libc.sem_init(lock, 0, 0)
            libc.pthread_mutex_lock(lock)
            libc.pthread_mutex_lock(lock)
    if ending == "fork":
        child = os.fork()
        if child == 0:
            time.sleep(2.5)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
