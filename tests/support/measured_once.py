"""What takes long to measure and is judged by several tests: made once, and once more after a test that it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

_Made = TypeVar("_Made")


class MeasuredOnce(Generic[_Made]):
    """Makes a measurement for each key when a test first asks.

    A test that is repeated so judges another one: a machine that held up this run's processes is not what it is about.

    Args:
        make: measures, told the key.
    """

    def __init__(self, make: Callable[[str], _Made]) -> None:
        self._make = make
        #: None for what could not be made.
        self._made: dict[str, _Made | None] = {}
        self._repeated: set[str] = set()

    @contextmanager
    def judged(self, key: str = "") -> Iterator[_Made]:
        """Give a measurement to a test."""
        try:
            if key not in self._made:
                self._made[key] = None
                self._made[key] = self._make(key)
            made = self._made[key]
            assert made is not None, "it could not be made"
            yield made
        except Exception:
            if key not in self._repeated:
                self._repeated.add(key)
                del self._made[key]
            raise
