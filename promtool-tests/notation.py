"""Samples in the notation of promtool's tests: ``0+75x20`` for a line, ``_x4`` for a gap, ``stale`` for an end.

Samples are whole numbers of a unit that is a power of two. promtool adds up a line sample by sample, and with decimal
steps the last sum may exceed the exact number that follows by a rounding error: a counter that resets.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

#: Units in a value of one.
UNIT = 2**14

#: A tick without a sample: None is a gap that the lookback bridges, STALE the marker that a failed scrape writes.
STALE = "stale"
Sample = int | str | None


def encode(samples: Sequence[Sample]) -> str:
    """Return the samples, one for each tick, as the ``values`` of an input series."""
    parts: list[str] = []
    start = 0
    while start < len(samples):
        length = _line_length(samples, start)
        parts.append(_line(samples[start], samples[start + 1] if length > 1 else None, length))
        start += length
    return " ".join(parts)


def _line_length(samples: Sequence[Sample], start: int) -> int:
    """Return how many samples from ``start`` on are one gap, one marker or one straight line."""
    first = samples[start]
    end = start + 1
    if first == STALE:
        return 1
    if first is None:
        while end < len(samples) and samples[end] is None:
            end += 1
        return end - start
    if end == len(samples) or not isinstance(first, int) or not isinstance(second := samples[end], int):
        return 1
    slope = second - first
    while end < len(samples) and samples[end] == first + slope * (end - start):
        end += 1
    return end - start


def _line(first: Sample, second: Sample, length: int) -> str:
    if first is None:
        return f"_x{length}" if length > 1 else "_"
    if isinstance(first, str):
        return first
    if length == 1:
        return _number(first)
    slope = second - first if isinstance(second, int) else 0
    sign = "-" if slope < 0 else "+"
    return f"{_number(first)}{sign}{_number(abs(slope))}x{length - 1}"


def _number(units: int) -> str:
    return f"{(Decimal(units) / UNIT).normalize():f}"
