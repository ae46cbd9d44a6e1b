"""What the monitor says: whole lines on stderr, with our name, between those of the job."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from laggard_cli.terminal import printable

_PREFIX = "laggard: "
#: Characters of a line where there is no terminal: nothing is wrapped.
_ENDLESS = 10_000
#: However narrow a terminal is; one that does not know its size has none.
_NARROWEST = 40


class Voice:
    """The end of stderr. Where nobody listens any more, nothing happens."""

    def __init__(self) -> None:
        # A file that was opened later may have the number of a stderr that was closed from the beginning.
        self._descriptor = sys.stderr.fileno() if sys.stderr is not None else None
        self.colour = False
        self.width = _ENDLESS
        if self._descriptor is not None and os.isatty(self._descriptor):
            self.colour = "NO_COLOR" not in os.environ
            self.width = max(_NARROWEST, os.get_terminal_size(self._descriptor).columns - len(_PREFIX))

    def say(self, text: str) -> None:
        """Print a text as one line."""
        self.write([printable(text)])

    def write(self, lines: Sequence[str]) -> None:
        """Print lines, in one piece."""
        if self._descriptor is None:
            return
        left = "".join(f"{_PREFIX}{line}".rstrip() + "\n" for line in lines).encode(errors="replace")
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(self._descriptor, left) :]
