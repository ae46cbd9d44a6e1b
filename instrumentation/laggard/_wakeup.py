"""What the drain thread sleeps on: an interval, a stop, or a signal that the main thread can not act on.

Python runs signal handlers on the main thread, between bytecodes. A rank that hangs inside a collective never gets
there, and with a Python handler for SIGTERM it would not die. So the interpreter is also told to write the number of
each signal into a pipe, which it does at once, and the drain thread reads that pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading


class Wakeup:
    """A pipe with one reader, the drain thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._listening = False

    def listen_to_signals(self) -> None:
        """Have the interpreter write signal numbers here. Only on the main thread, and only if nobody else has."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if previous == -1:
            self._listening = True
        else:
            signal.set_wakeup_fd(previous)

    def listening(self) -> bool:
        """Return whether signals still arrive here, since a script may listen itself. Only on the main thread."""
        if not self._listening:
            return False
        current = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if current != self._write:
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        return current == self._write

    def stop(self) -> None:
        """Wake the reader and tell it to end. May be called from a signal handler."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def wait(self, seconds: float) -> bytes:
        """Sleep, and return what arrived: a 0 for a stop, else numbers of signals; nothing when the time is up."""
        ready, _, _ = select.select([self._read], [], [], seconds)
        return os.read(self._read, 256) if ready else b""

    def forget(self) -> None:
        """Stop listening and close. In a forked child this leaves the parent's pipe as it is."""
        if self._listening and threading.current_thread() is threading.main_thread():
            self._listening = False
            # A listener that was set after ours stays.
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, self._write):
                signal.set_wakeup_fd(current)
        for fd in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(fd)
