"""What is taken for the difference of two clocks, where the thread loses its processor while it reads them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from laggard._clocks import ahead_ns, boottime_ahead_ns, unix_ahead_ns
from laggard.shared.statefile import boottime_ns

AHEAD = 1_700_000_000_000_000_000


def clocks(waits: list[int]) -> tuple[Callable[[], int], Callable[[], int]]:
    """Return a clock and its reference, each of whose readings takes the next of ``waits`` in nanoseconds, or 100."""
    now = 0

    def read() -> int:
        nonlocal now
        now += waits.pop(0) if waits else 100
        return now

    return lambda: read() + AHEAD, read


@pytest.mark.parametrize("number", range(6))
def test_a_wait_for_a_processor_is_no_difference_of_clocks(number: int) -> None:
    """Wherever in two of three readings 20 ms go by, the difference is exact to the time of one reading."""
    waits = [100] * 6
    waits[number] = 20_000_000
    clock, reference = clocks(waits + waits[:3])
    assert ahead_ns(clock, reference) == pytest.approx(AHEAD, abs=100)


def test_real_clocks_are_set_against_each_other() -> None:
    """A time turned into another clock's lies between two readings of that clock."""
    for ahead, clock in ((unix_ahead_ns, time.time_ns), (boottime_ahead_ns, boottime_ns)):
        offset, slack = ahead(), 1_000_000
        before = clock()
        turned = time.perf_counter_ns() + offset
        assert before - slack <= turned <= clock() + slack
