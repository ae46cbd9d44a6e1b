"""Times and durations as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from laggard_cli.errors import CommandError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def moment(flag: str, text: str) -> float:
    """Return a time of ISO 8601 (UTC where it names no zone), or seconds since 1970.

    Raises:
        CommandError: it is neither.
    """
    try:
        return parse_moment(text)
    except ValueError:
        raise CommandError(f"{flag} must be a time, got {text!r}; try 2026-01-31T08:00:00Z") from None


def parse_moment(text: str) -> float:
    """Return a time as :func:`moment` does. Raises :class:`ValueError` for anything else."""
    if text.replace(".", "", 1).isdigit():
        return float(text)
    # Python before 3.11 does not know the letter.
    found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def seconds(flag: str, text: str) -> float:
    """Return a duration such as ``90m`` in seconds.

    Raises:
        CommandError: it is none, or 0.
    """
    parts = _DURATION.findall(text)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not total or "".join(number + unit for number, unit in parts) != text:
        raise CommandError(f"{flag} must be a duration, got {text!r}; try 90m, 1h or 2d")
    return total


def iso(at: float) -> str:
    """Return a time for a person, in UTC."""
    return form(at, "%Y-%m-%d %H:%M:%S UTC")


def form(at: float, how: str) -> str:
    """Return a time in UTC in a form of ``strftime``; a server may give one that no calendar has."""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime(how)
    except (OSError, OverflowError, ValueError):
        return "an unknown time"
