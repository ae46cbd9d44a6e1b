"""Times, durations and percentages: as people write them, and as they read them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard_cli.errors import CommandError
from laggard_cli.past import times

#: 2023-11-14 22:13:20 UTC, in India 2023-11-15 03:43:20.
NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _in_india(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half an hour beside all whole hours: what is local and what is not cannot be taken for each other."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        patch.setattr(times.time, "time", lambda: NOW)
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", NOW - 300), ("5m ago", NOW - 300), ("-1h30m", NOW - 5400), ("2d", NOW - 172_800),
        ("1700000000", NOW), ("1700000000.5", NOW + 0.5),
        ("2023-11-14T22:13:20Z", NOW), ("2023-11-14T22:13:20.123456789Z", NOW + 0.123456),
        ("2023-11-15 03:43:20+05:30", NOW), ("2023-11-14 22:13:20 UTC", NOW),
        ("2023-11-15 03:43:20", NOW), ("2023-11-15", NOW - 3 * 3600 - 43 * 60 - 20),
    ],
)  # fmt: skip
def test_a_time_is_read_as_people_write_it(text: str, expected: float) -> None:
    """A zone that it names counts; without one it is that of this machine."""
    assert times.moment("--at", text) == pytest.approx(expected, abs=1e-5)


def test_a_time_of_the_clock_is_the_last_one() -> None:
    """Today's where that was already, else yesterday's."""
    assert times.moment("--at", "03:43") == NOW - 20
    assert times.moment("--at", "3:43:20") == NOW
    assert times.moment("--at", "03:44") == NOW + 40 - 86_400
    assert times.moment("--at", "22:43") == NOW - 5 * 3600 - 20


def test_a_time_in_the_future_is_refused() -> None:
    """But for the end of a report, which is then now; a minute ahead is what a server's clock may be."""
    line = "--at must be in the past, got '2023-11-15T22:13:20Z'; try 2026-01-31T08:00:00Z, 22:43 or 5m (ago)"
    with pytest.raises(CommandError) as error:
        times.moment("--at", "2023-11-15T22:13:20Z")
    assert str(error.value) == line
    assert times.moment("--to", "2023-11-15T22:13:20Z", ahead=True) == NOW + 86_400
    assert times.moment("--at", "1700000030") == NOW + 30


@pytest.mark.parametrize(
    ("read", "text", "line"),
    [
        (times.moment, "25:00", "--x must be a time, got '25:00'; try 2026-01-31T08:00:00Z, 22:43 or 5m (ago)"),
        (times.moment, "now", "--x must be a time, got 'now'; try 2026-01-31T08:00:00Z, 22:43 or 5m (ago)"),
        (times.moment, "9" * 13, f"--x must be a time, got '{'9' * 13}'; try 2026-01-31T08:00:00Z, 22:43 or 5m (ago)"),
        (times.seconds, "5 m", "--x must be a duration, got '5 m'; try 90m, 1h or 2d"),
        (times.seconds, "0", "--x must be a duration, got '0'; try 90m, 1h or 2d"),
        (times.percentage, "0", "--x must be a percentage between 0 and 100, got 0; try 5%"),
        (times.percentage, "100%", "--x must be a percentage between 0 and 100, got 100%; try 5%"),
        (times.percentage, "five", "--x must be a percentage between 0 and 100, got five; try 5%"),
    ],
)  # fmt: skip
def test_what_is_none_is_one_line(read: Callable[[str, str], float], text: str, line: str) -> None:
    """It names the option, the value, and what can be given."""
    with pytest.raises(CommandError) as error:
        read("--x", text)
    assert str(error.value) == line


@given(st.text())
def test_any_text_is_a_number_or_refused(text: str) -> None:
    """Nothing that a person types ends in another error."""
    for read in (times.moment, times.seconds, times.percentage):
        with contextlib.suppress(CommandError):
            assert abs(read("--x", text)) < 1e300


def test_durations_and_percentages() -> None:
    """With a unit or without."""
    assert [times.seconds("--x", text) for text in ("45", "0.2", "45s", "1h30m")] == [45, 0.2, 45, 5400]
    assert [times.percentage("--x", text) for text in ("5%", "5", "2.5 %")] == [5, 5, 2.5]


def test_a_time_is_printed_as_people_say_it() -> None:
    """How long ago, and what the clock of this machine showed; another day is named."""
    assert times.ago(NOW - 190, NOW) == "3 min ago (03:40:10)"
    assert times.ago(NOW - 5 * 3600, NOW) == "5 h ago (2023-11-14 22:43:20)"
    assert times.ago(NOW + 60, NOW) == "03:44:20"
    assert times.ago(1e300, NOW) == "an unknown time"
    assert times.told("2023-11-14T22:13:00.5Z") == "20 s ago (03:43:00)"
    assert times.told("soon") == "soon"


@given(st.integers(min_value=0, max_value=int(NOW)))
def test_what_is_printed_can_be_given(at: int) -> None:
    """The time in brackets, pasted into --at, is that time again."""
    printed = times.ago(at, NOW).partition("(")[2].rstrip(")")
    assert times.moment("--at", printed) == at
