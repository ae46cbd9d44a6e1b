"""What a script calls, on a platform where nothing can be measured: it trains on, and one line says so.

The state file needs locks that tell whether a process lives, which Windows has in another form.
"""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType
from typing import Any

from laggard._summary import Summary

_NOTE = f"nothing is measured on {sys.platform}: laggard needs Linux or macOS"
_logger = logging.getLogger(__name__)


def instrument() -> None:
    """Say that nothing is measured."""
    _logger.warning("%s; training goes on", _NOTE)


def uninstrument() -> None:
    """Do nothing."""


def set_peer_group(name: str) -> None:
    """Do nothing."""


class step:  # noqa: N801 - reads as a function where it is used
    """Context of one training step, which does nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""


class phase:  # noqa: N801 - as above
    """Context of one phase inside a step, which does nothing."""

    __slots__ = ()

    def __init__(self, name: str) -> None: ...

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""


def log(**values: Any) -> None:
    """Do nothing."""


def dump_trace(path: str | os.PathLike[str] = "") -> None:
    """Do nothing."""


def profile(steps: int = 5, path: str | os.PathLike[str] = "", *, stacks: bool = False) -> None:
    """Do nothing."""


def summary() -> Summary:
    """Return a summary that says why it has no figures."""
    return Summary(note=_NOTE)
