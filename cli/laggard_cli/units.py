"""Numbers with their units, as a person reads them."""

from __future__ import annotations

_SUFFIXES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def duration(seconds: float) -> str:
    """Return a duration in the unit that reads best, three digits."""
    if seconds >= 0.9995:  # noqa: PLR2004 - what three digits make a second
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms"


def amount(value: float, unit: str) -> str:
    """Return a number with its unit: ``s``, ``By`` or any other, which is written as it is; four digits."""
    if unit == "By":
        size, name = next((found for found in _SUFFIXES if value >= found[0]), (1.0, "B"))
        return f"{value / size:.4g} {name}"
    if unit != "s":
        return f"{value:.4g} {unit}"
    return f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
