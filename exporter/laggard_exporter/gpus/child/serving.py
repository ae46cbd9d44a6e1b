"""Reads requests from the exporter and writes the answers, one request after the other."""

from __future__ import annotations

import gc
import mmap
import os
import select
import threading
from typing import TYPE_CHECKING, Any, Protocol

from laggard_exporter.gpus.child.frames import PROGRESS, dump, pack, read, write

if TYPE_CHECKING:
    from collections.abc import Callable


class Driver(Protocol):
    """Calls the functions of a library by their names."""

    def call(self, function: str, device: Any, arguments: Any) -> tuple[int, Any]:
        """Return the library's return code and the plain value of one call."""
        ...


def serve(page: int, make: Callable[[Callable[[int, Any], None]], Driver]) -> None:
    """Serve until standard input ends.

    ``page`` is the descriptor of the memory for :data:`PROGRESS`. ``make`` returns the driver, given what takes the
    frames of events.
    """
    progress = mmap.mmap(page, mmap.PAGESIZE)
    threading.Thread(target=_end_with_the_exporter, daemon=True).start()
    # Whatever a library prints must not get between the frames.
    output = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(number: int, content: Any) -> None:
        frame = pack(number, dump(content))
        with lock:
            write(output, frame)

    driver = make(send)
    # What is loaded stays: the collector of garbage need not look at it again and again.
    gc.freeze()
    while (request := read(0)) is not None:
        number, calls = request
        answers: list[tuple[int, Any]] = []
        for index, (function, device, arguments) in enumerate(calls):
            PROGRESS.pack_into(progress, 0, number, index)
            answers.append(driver.call(function, device, arguments))
        send(number, answers)


def _end_with_the_exporter() -> None:
    # Without an event asked for, poll returns when the other end of the pipe is closed: also while a call hangs.
    waiting = select.poll()
    waiting.register(0, 0)
    waiting.poll()
    os._exit(0)
