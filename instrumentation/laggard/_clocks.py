"""What lies between two clocks of one machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from laggard.shared.statefile import boottime_ns

# One of this many readings is undisturbed, unless the thread loses its processor or the GIL in each of them.
_READINGS = 3


def ahead_ns(clock: Callable[[], int], reference: Callable[[], int] = time.perf_counter_ns) -> int:
    """Return how many nanoseconds ``clock`` is ahead of ``reference``, by the quickest of a few readings.

    A thread that loses its processor between the two clocks would take its wait for a difference of them.
    """
    readings: list[tuple[int, int]] = []
    for _ in range(_READINGS):
        before = reference()
        now = clock()
        took = reference() - before
        readings.append((took, now - before - took // 2))
    return min(readings)[1]


def unix_ahead_ns() -> int:
    """Return what turns a ``perf_counter_ns`` into unix time, by the present setting of the clock."""
    return ahead_ns(time.time_ns)


def boottime_ahead_ns() -> int:
    """Return what turns a ``perf_counter_ns`` into ``CLOCK_BOOTTIME``, by the suspends of the machine until now."""
    return ahead_ns(boottime_ns)
