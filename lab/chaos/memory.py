"""A control group with little memory, into which a rank goes to be killed by the kernel. Needs root."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

#: The breakage that needs it, and where it finds it.
OUT_OF_MEMORY = "out-of-memory"
VARIABLE = "CHAOS_CGROUP"

_LIMIT_BYTES = 64 * 2**20
_END_SECONDS = 5.0
_FIRST, _SECOND = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
#: Limits by the version of the control groups; that of swap is there where swap is counted.
_FIRST_LIMITS = {"memory.limit_in_bytes": _LIMIT_BYTES, "memory.memsw.limit_in_bytes": _LIMIT_BYTES}
_SECOND_LIMITS = {"memory.max": _LIMIT_BYTES, "memory.swap.max": 0}


class MemoryLimit:
    """The group, from entry to exit.

    Args:
        name: part of its name.
    """

    def __init__(self, name: str) -> None:
        root, self._limits = (_FIRST, _FIRST_LIMITS) if _first() else (_SECOND, _SECOND_LIMITS)
        self._folder = root / f"laggard-chaos-{os.getpid()}-{name}"
        self.environment = {VARIABLE: str(self._folder / "cgroup.procs")}

    @staticmethod
    def missing() -> str:
        """Return why there can be no such group here; empty where there can."""
        if os.geteuid() != 0:
            return "a control group needs root"
        root = _FIRST if _first() else _SECOND
        if not _first() and "memory" not in _delegated():
            return f"no control groups with memory in {_SECOND}"
        return "" if os.access(root, os.W_OK) else f"{root} is read-only"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        for name, limit in self._limits.items():
            if (self._folder / name).exists():
                (self._folder / name).write_text(str(limit))
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while self._folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # who was in it is still on the way out
                self._folder.rmdir()
            time.sleep(0.1)


def _first() -> bool:
    return (_FIRST / "memory.limit_in_bytes").exists()


def _delegated() -> list[str]:
    try:
        return (_SECOND / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
