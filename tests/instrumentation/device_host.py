"""A host for one hook, in place of a process."""

from __future__ import annotations

from typing import Any

from laggard._hooks.exposure import Exposure
from laggard._recorder import Recorder


class Host:
    """A host for one hook."""

    def __init__(self) -> None:
        self.backward_observers: list[Any] = []
        self.recorder = Recorder()
        self.exposure = Exposure()
        self.failed: list[str] = []

    def part_failed(self, hook: Any, error: Exception) -> None:
        hook.uninstall()
        self.failed.append(repr(error))
