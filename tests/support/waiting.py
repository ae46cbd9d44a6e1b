"""Waiting for what becomes so, in place of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def until(found: Callable[[], _Found], otherwise: str = "it did not become so", seconds: float = 60) -> _Found:
    """Return what a function returns once that is true.

    Raises:
        AssertionError: it was not true in time; with ``otherwise``.
    """
    end = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)
    return answer
