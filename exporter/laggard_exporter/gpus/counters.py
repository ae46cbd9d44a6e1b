"""Keeps counters growing over wraps of 32-bit words and over resets, as after a reload of the driver."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_WORD = 1 << 32


@dataclass
class _Counter:
    raw: float
    base: float = 0


class Counters:
    """The counters by any key."""

    def __init__(self) -> None:
        self._counters: dict[Hashable, _Counter] = {}

    def value(self, key: Hashable) -> float | None:
        """Return the value of the newest reading, None before the first."""
        counter = self._counters.get(key)
        return None if counter is None else counter.base + counter.raw

    def skip(self, key: Hashable, raw: float) -> None:
        """Go on from this reading without the growth up to it, which is not known."""
        counter = self._counters.setdefault(key, _Counter(raw))
        counter.base += counter.raw - raw
        counter.raw = raw

    def widen(self, key: Hashable, raw: float, *, word: bool = False, expected: float | None = None) -> float:
        """Return the value that goes on from the one before.

        Args:
            key: which counter.
            raw: its reading.
            word: whether it counts in 32 bits: then a lower reading, less than half a word on, is a wrap.
            expected: how much it should have grown by another source, where there is one; tells of several wraps.
        """
        counter = self._counters.get(key)
        if counter is None:
            self._counters[key] = _Counter(raw)
            return raw
        grown = (raw - counter.raw) % _WORD
        if word and (raw >= counter.raw or grown < _WORD // 2):
            counter.base += counter.raw + grown - raw
            if expected is not None:
                counter.base += max(0, round((expected - grown) / _WORD)) * _WORD
        elif raw < counter.raw:
            counter.base += counter.raw
        counter.raw = raw
        return counter.base + raw
