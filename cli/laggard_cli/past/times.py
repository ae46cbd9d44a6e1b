"""Times, durations and percentages: the one place that reads them as people write them, and prints them.

A time without a zone is that of this machine's clock, as a person reads it there, and as it is printed.
"""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timedelta, timezone

from laggard_cli.errors import CommandError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
#: In seconds since 1970 what no calendar has is a typing error.
_MOST_MOMENT = 253_402_300_799.0
#: A server's clock may be ahead by seconds of this machine's.
_CLOCKS_APART = 60.0
#: Why nothing is there of a time in the past.
NOT_KEPT = "laggard's rules were not evaluated then, or no raw samples of that time are kept (retention, downsampling)"
#: As help texts and errors name them.
MOMENTS = "2026-01-31T08:00:00Z, 22:43 or 5m (ago)"


def moment(flag: str, text: str, *, ahead: bool = False) -> float:
    """Return a time in seconds since 1970.

    Of ISO 8601, of the clock (``22:43``, the last one), so long ago (``5m``), or seconds since 1970. Where it
    names no zone it is local.

    Args:
        flag: the option that has it.
        text: the time.
        ahead: whether it may be in the future.

    Raises:
        CommandError: it is none of these, or in the future.
    """
    try:
        found = parse_moment(text)
    except ValueError:
        raise CommandError(f"{flag} must be a time, got {text!r}; try {MOMENTS}") from None
    if found > time.time() + _CLOCKS_APART and not ahead:
        raise CommandError(f"{flag} must be in the past, got {text!r}; try {MOMENTS}")
    return found


def parse_moment(text: str) -> float:
    """Return a time as :func:`moment` does. Raises :class:`ValueError` for anything else."""
    text = text.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return _within(float(text))
    if clock := _CLOCK.fullmatch(text):
        # Without a zone, so that the day before has its own, where a clock is put forward or back.
        now = datetime.fromtimestamp(time.time())  # noqa: DTZ006 - what this machine's clock shows
        hour, minute, second = (int(part or 0) for part in clock.groups())
        found = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (found if found <= now else found - timedelta(days=1)).timestamp()
    if length := _length(text.removesuffix("ago").strip().removeprefix("-")):
        return time.time() - length
    # Python before 3.11 knows neither the letter nor nine digits of a second.
    plain = re.sub(r"(\.\d{6})\d+", r"\1", re.sub(" ?([zZ]|UTC)$", "+00:00", text))
    try:
        return _within(datetime.fromisoformat(plain).timestamp())
    except OverflowError:
        raise ValueError(text) from None


def _within(found: float) -> float:
    if not abs(found) <= _MOST_MOMENT:
        raise ValueError(found)
    return found


def seconds(flag: str, text: str) -> float:
    """Return a duration such as ``90m``, ``1h30m`` or ``45``, which is in seconds, in seconds.

    Raises:
        CommandError: it is none, or 0.
    """
    plain = text.isascii() and text.replace(".", "", 1).isdigit()
    total = float(text) if plain else _length(text)
    if not total or not math.isfinite(total):
        raise CommandError(f"{flag} must be a duration, got {text!r}; try 90m, 1h or 2d")
    return total


def _length(text: str) -> float:
    """Return the seconds of a duration with units; 0 for what is none."""
    parts = _DURATION.findall(text)
    whole = "".join(number + unit for number, unit in parts) == text
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if whole else 0.0


def percentage(flag: str, text: str) -> float:
    """Return a percentage, written as ``5%`` or ``5``.

    Raises:
        CommandError: it is none between 0 and 100.
    """
    try:
        found = float(text.strip().removesuffix("%"))
    except ValueError:
        found = math.nan
    if not 0 < found < 100:  # noqa: PLR2004 - percent
        raise CommandError(f"{flag} must be a percentage between 0 and 100, got {text}; try 5%")
    return found


def ago(at: float, now: float | None = None) -> str:
    """Return a time for a person at a terminal: how long ago it was, and what the clock there showed."""
    now = time.time() if now is None else now
    try:
        then, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone()
    except (OSError, OverflowError, ValueError):
        return "an unknown time"
    clock = f"{then:%H:%M:%S}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M:%S}"
    return f"{length(now - at)} ago ({clock})" if at <= now else clock


def length(duration: float) -> str:
    """Return a duration as people say it: ``40 s``, ``3 min``, ``5 h``, ``2 days``."""
    for unit, limit, name in ((1, 100, "s"), (60, 100, "min"), (3600, 48, "h")):
        if round(duration / unit) < limit:
            return f"{duration / unit:.0f} {name}"
    return f"{duration / 86400:.0f} days"


def told(text: str) -> str:
    """Return a time that a server or a rule wrote as :func:`ago` does, and any other text unchanged."""
    try:
        return ago(parse_moment(text))
    except ValueError:
        return text


def iso(at: float) -> str:
    """Return a time for a person, in UTC."""
    return form(at, "%Y-%m-%d %H:%M:%S UTC")


def form(at: float, how: str) -> str:
    """Return a time in UTC in a form of ``strftime``; a server may give one that no calendar has."""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime(how)
    except (OSError, OverflowError, ValueError):
        return "an unknown time"
