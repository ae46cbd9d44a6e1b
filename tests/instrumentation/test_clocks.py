"""What is taken for the difference of two clocks, where the thread loses its processor while it reads them."""

from __future__ import annotations

import time
from itertools import combinations, count

import pytest

from laggard._clocks import ahead_ns, boottime_ahead_ns, unix_ahead_ns
from laggard.shared.statefile import boottime_ns

AHEAD = 1_700_000_000_000_000_000


@pytest.mark.parametrize("late", list(combinations(range(9), 2)))
def test_a_wait_for_a_processor_is_no_difference_of_clocks(late: tuple[int, int]) -> None:
    """Before whichever two of the nine times that are read 20 ms go by, one reading is undisturbed, and it counts."""
    now, number = 0, count()

    def read() -> int:
        nonlocal now
        now += 20_000_000 if next(number) in late else 100
        return now

    assert ahead_ns(lambda: read() + AHEAD, read) == pytest.approx(AHEAD, abs=100)


def test_real_clocks_are_set_against_each_other() -> None:
    """A time turned into another clock's lies between two readings of that clock."""
    for ahead, clock in ((unix_ahead_ns, time.time_ns), (boottime_ahead_ns, boottime_ns)):
        offset, slack = ahead(), 1_000_000
        before = clock()
        turned = time.perf_counter_ns() + offset
        assert before - slack <= turned <= clock() + slack
