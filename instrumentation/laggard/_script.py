"""Where the script's own code is on the thread that trains: it may be what a notebook, a pool or a server calls.

Such a program is installed, and goes on when the script's code has returned to it. What the script's code is called as
stays the same from run to run.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laggard._steps import Step

#: How long no step has ended, at least, before the script's code is looked for; the rules wait for longer than that.
_PAUSE_NS = 10_000_000_000
#: And at least this number of the longest step: a pool may call the code for each step.
_LONGEST_STEPS = 2

_INSTALLED = (
    *(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "scripts")),
    f"{Path(__file__).parent}/",
)


class Script:
    """Follows the outermost frame of the script's code on the thread that trains."""

    def __init__(self, thread: int) -> None:
        #: None where all code on that thread is installed.
        self.code = _outermost(thread)
        self._step_ended = 0
        self._longest = 0

    def look(self, thread: int) -> None:
        """Look for it on a thread, and keep what was found if it is not there."""
        self.code = _outermost(thread) or self.code

    def train(self, thread: int, steps: list[Step]) -> None:
        """Take steps that have ended."""
        self._step_ended = steps[-1].ended
        self._longest = max(self._longest, *(step.duration for step in steps if not step.excluded), 0)
        self.look(thread)

    def returned(self, thread: int) -> bool:
        """Return whether the code that trained has returned, and no step has ended for a while."""
        if time.perf_counter_ns() - self._step_ended < max(_PAUSE_NS, _LONGEST_STEPS * self._longest):
            return False
        running = list(_running(thread))
        return not running or (self.code is not None and self.code not in running)


def name(code: CodeType | None) -> str:
    """Return the name of the program. Where a package brings it, that of the script whose code it runs."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    argument = sys.argv[0] if sys.argv else ""
    # Jupyter names the notebook.
    program = main or os.environ.get("JPY_SESSION_NAME") or argument or "python"
    if _is_installed(program):
        # Pools of processes hand on what their parent was called with. What a notebook runs is in no file.
        files = (argument, code.co_filename if code is not None else "")
        program = next((file for file in files if Path(file).is_file() and not _is_installed(file)), program)
    path = Path(program)
    return path.parent.stem if path.stem == "__main__" else path.stem


def _outermost(thread: int) -> CodeType | None:
    found = [code for code in _running(thread) if not _is_installed(code.co_filename)]
    return found[-1] if found else None


def _running(thread: int) -> Iterator[CodeType]:
    """Yield what runs on a thread, the innermost first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the only way to it
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


@cache
def _is_installed(file: str) -> bool:
    """Return whether a file is Python's or a package's."""
    return file.startswith((*_INSTALLED, "<frozen")) or not {"site-packages", "dist-packages"}.isdisjoint(
        Path(file).parts
    )
