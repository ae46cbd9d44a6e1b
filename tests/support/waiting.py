"""Waiting for what becomes so, in place of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def until(found: Callable[[], _Found], otherwise: str = "it did not become so", seconds: float = 60) -> _Found:
    """Return what a function returns once that is true. At most a fifth of the time goes into asking.

    Raises:
        AssertionError: it was not true in time; with ``otherwise``.
    """
    end = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if answer := found():
            return answer
        now = time.monotonic()
        assert now < end, otherwise
        time.sleep(max(0.1, 4 * (now - asked)))
