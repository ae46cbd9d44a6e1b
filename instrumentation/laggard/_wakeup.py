"""What the drain thread sleeps on: an interval, a stop, or a signal that it is to hear of.

A signal's number comes through a pipe, so the drain thread hears of it while the main thread is stuck and runs no
handler of Python's. Python's own wakeup descriptor is left to the script, whose event loop takes it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from importlib import import_module
from typing import Any

from laggard.shared.statefile import beyond_standard

#: The actions of signals beneath Python, where this installation has them compiled (`_sigaction.pyi`).
sigaction: Any = None
with contextlib.suppress(ImportError):
    sigaction = import_module("laggard._sigaction")

#: What arrives beside numbers of signals: an end, a wish to drain at once, and one to report at once.
STOP, LOOK, AT_ONCE = 0, 254, 255


class Wakeup:
    """A pipe with one reader, the drain thread."""

    def __init__(self) -> None:
        with beyond_standard():
            self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.descriptor, False)
        self._heard: list[int] = []
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def hear(self, number: int) -> bool:
        """Have a signal's number arrive here; return whether it does. Refused where it has a handler, and SIGTERM."""
        if number == signal.SIGTERM:
            return False
        if sigaction is not None:
            heard = bool(sigaction.request(number, self.descriptor))
        else:
            on_main_thread = threading.current_thread() is threading.main_thread()
            heard = on_main_thread and signal.getsignal(number) is signal.SIG_DFL
            if heard:
                signal.signal(number, self._on_signal)
        if heard:
            self._heard.append(number)
        return heard

    def send(self, what: int) -> None:
        """Wake the reader. May be called from a signal handler."""
        with contextlib.suppress(OSError):
            os.write(self.descriptor, bytes([what]))

    def wait(self, seconds: float) -> bytes:
        """Sleep, and return what arrived; nothing when the time is up."""
        return os.read(self._read, 256) if self._poll.poll(seconds * 1000) else b""

    def forget(self) -> None:
        """Give the signals back and close. In a forked child this leaves the parent's pipe as it is."""
        for number in self._heard:
            if sigaction is not None:
                sigaction.give_back(number)
            elif threading.current_thread() is threading.main_thread() and signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL)
        self._heard.clear()
        for fd in (self._read, self.descriptor):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.send(number)
