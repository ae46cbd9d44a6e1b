"""What goes wrong inside a rank. Each is real and has no end, unless it is said.

``BREAKAGES`` has for each its place in the rank's loop, see :mod:`lab.chaos.rank`, and what happens there.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from lab.chaos.memory import OUT_OF_MEMORY, VARIABLE

#: So long takes what looks like a stall and is none: longer than the limit of a stall, shorter than that of a pause.
_LONG_SECONDS = 16.0


class LeaveError(Exception):
    """The rank leaves its loop before the others do."""


class Breakage(NamedTuple):
    """A place in the loop, and what happens there, given a folder to write to."""

    place: str
    happen: Callable[[Path], None]


def _native_sleep_with_the_interpreter_lock(_: Path) -> None:
    ctypes.PyDLL(None).pause()


def _regular_expression(_: Path) -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def _native_lock(_: Path) -> None:
    lock = ctypes.create_string_buffer(64)
    native = ctypes.CDLL(None)
    native.pthread_mutex_lock(lock)
    native.pthread_mutex_lock(lock)


def _lock(_: Path) -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def _two_locks(_: Path) -> None:
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(one: threading.Lock, other: threading.Lock) -> None:
        with one:
            both.wait()
            other.acquire()

    threading.Thread(target=take, args=(second, first), daemon=True).start()
    take(first, second)


def _loop(_: Path) -> None:
    while True:
        pass


def _sleep(_: Path) -> None:
    while True:
        time.sleep(1)


def _read_from_storage(folder: Path) -> None:
    _pipe(folder).open("rb").read()


def _save_to_storage(folder: Path) -> None:
    torch.save({"weight": torch.zeros(1000)}, _pipe(folder))


def _save_slowly(folder: Path) -> None:
    class Slow:
        """A file that needs its time for a checkpoint."""

        def __init__(self) -> None:
            self._file = (folder / "model.pt").open("wb")
            self._waited = False

        def write(self, data: bytes) -> int:
            if not self._waited:
                self._waited = True
                time.sleep(_LONG_SECONDS)
            return self._file.write(data)

        def flush(self) -> None:
            self._file.flush()

    torch.save({"weight": torch.zeros(1000)}, Slow())  # pyright: ignore[reportArgumentType] - all that torch asks for


def _pipe(folder: Path) -> Path:
    """Return a file that, like storage that is gone, opens for nobody."""
    path = folder / f"storage{os.getpid()}"
    os.mkfifo(path)
    return path


def _server(_: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.recv(1)


def _child(_: Path) -> None:
    subprocess.run(["sleep", "600"], check=False)


def _queue(_: Path) -> None:
    threading.Thread(target=threading.Event().wait).start()
    threading.Event().wait()


def _receive(_: Path) -> None:
    dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size(), tag=7)


def _other_collective(_: Path) -> None:
    dist.barrier()


def _other_size(_: Path) -> None:
    dist.all_reduce(torch.zeros(7))


def _other_loop(_: Path) -> None:
    raise LeaveError


def _raise_and_linger(_: Path) -> None:
    try:
        torch.dot(torch.zeros(2), torch.zeros(3))
    except RuntimeError:
        # As a debugger, or a handler that waits for the others, does.
        _sleep(_)


def _raise(_: Path) -> None:
    raise RuntimeError("on purpose")


def _exit_cleanly(_: Path) -> None:
    sys.exit(0)


def _exit_at_once(_: Path) -> None:
    os._exit(1)


def _crash(_: Path) -> None:
    ctypes.string_at(0)


def _allocate(_: Path) -> None:
    Path(os.environ[VARIABLE]).write_text(str(os.getpid()))
    kept: list[bytes] = []
    while True:
        kept.append(b"1" * 2**20)


def _finalizer(_: Path) -> None:
    class Endless:
        """What the collector of garbage never gets done with."""

        def __del__(self) -> None:
            _loop(_)

    Endless()


def _pause(_: Path) -> None:
    time.sleep(_LONG_SECONDS)


BREAKAGES = {
    "native-sleep": Breakage("forward", _native_sleep_with_the_interpreter_lock),
    "regular-expression": Breakage("between", _regular_expression),
    "native-lock": Breakage("forward", _native_lock),
    "lock": Breakage("between", _lock),
    "two-locks": Breakage("optimizer", _two_locks),
    "worker-lock": Breakage("worker", _lock),
    "worker-storage": Breakage("worker", _read_from_storage),
    "storage": Breakage("between", _read_from_storage),
    "checkpoint-storage": Breakage("between", _save_to_storage),
    "forward-loop": Breakage("forward", _loop),
    "backward-loop": Breakage("backward", _loop),
    "optimizer-loop": Breakage("optimizer", _loop),
    "between-loop": Breakage("between", _loop),
    "finalizer-loop": Breakage("between", _finalizer),
    "evaluation-sleep": Breakage("evaluation", _sleep),
    "server": Breakage("between", _server),
    "child": Breakage("between", _child),
    "queue": Breakage("between", _queue),
    "receive": Breakage("between", _receive),
    "mismatch": Breakage("between", _other_collective),
    "other-size": Breakage("between", _other_size),
    "left-early": Breakage("between", _other_loop),
    "raise-linger": Breakage("between", _raise_and_linger),
    "raise": Breakage("between", _raise),
    "exit-cleanly": Breakage("between", _exit_cleanly),
    "exit-at-once": Breakage("forward", _exit_at_once),
    "crash": Breakage("backward", _crash),
    OUT_OF_MEMORY: Breakage("between", _allocate),
    # Nothing is wrong with these.
    "checkpoint-slow": Breakage("between", _save_slowly),
    "evaluation-slow": Breakage("evaluation", _pause),
}
