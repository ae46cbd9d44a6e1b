"""Waiting for what becomes so, in place of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_Found = TypeVar("_Found")


def turns(seconds: float, otherwise: object = "it did not become so") -> Iterator[float]:
    """Yield how many seconds have gone, with pauses: at most a fifth of the time goes into what is asked in each turn.

    Raises:
        AssertionError: the time is over; with ``otherwise``, or what that returns.
    """
    begin = time.monotonic()
    while True:
        asked = time.monotonic()
        yield asked - begin
        now = time.monotonic()
        assert now - begin < seconds, otherwise() if callable(otherwise) else otherwise
        time.sleep(max(0.1, 4 * (now - asked)))


def until(found: Callable[[], _Found], otherwise: object = "it did not become so", seconds: float = 60) -> _Found:
    """Return what a function returns once that is true.

    Raises:
        AssertionError: it was not true in time; with ``otherwise``, or what that returns.
    """
    return next(answer for _ in turns(seconds, otherwise) if (answer := found()))


def wait_until(condition: Callable[[], bool], seconds: float, otherwise: object = "it did not become so") -> float:
    """Wait until a condition holds; return how many seconds that took.

    Raises:
        AssertionError: it did not hold in time; with ``otherwise``, or what that returns.
    """
    return next(took for took in turns(seconds, otherwise) if condition())
