"""What goes on while a command waits: one line of a terminal that is drawn over, or now and then a line of a log."""

from __future__ import annotations

import sys
import threading
import time

from laggard_cli.terminal import printable

#: Between two lines of a log.
_LOG_SECONDS = 15.0
_ERASE = "\r\x1b[2K"


class Progress:
    """Prints results to stdout as they come, and says on stderr what is waited for. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._terminal = sys.stderr.isatty()
        self._shown = ""
        self._said = time.monotonic()

    def result(self, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._clear()
            print(printable(text), flush=True)

    def waits(self, text: str) -> None:
        """Say what is waited for."""
        with self._lock:
            if not self._terminal:
                if time.monotonic() - self._said >= _LOG_SECONDS:
                    self._said = time.monotonic()
                    print(printable(text), file=sys.stderr, flush=True)
            elif text != self._shown:
                self._clear()
                self._shown = text
                print(printable(text), end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave nothing on the terminal that does not hold any more."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._shown:
            self._shown = ""
            print(_ERASE, end="", file=sys.stderr, flush=True)
