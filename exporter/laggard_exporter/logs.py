"""Logging that a broken node cannot turn into a flood."""

from __future__ import annotations

import logging

LIMIT = 1000


class LogOnce:
    """Logs each distinct message once.

    After :data:`LIMIT` messages it is silent: others choose what some messages contain, for example file names.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._seen: set[str] = set()

    def __call__(self, level: int, message: str) -> None:
        """Log ``message`` unless it was logged before."""
        if message not in self._seen and len(self._seen) < LIMIT:
            self._seen.add(message)
            # A file name may hold line breaks and control sequences of a terminal.
            self._logger.log(level, "%s", message if message.isprintable() else ascii(message))
