"""Small files of procfs and sysfs."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return what the file says without blanks at its ends, None where it is not there or the driver refuses."""
    try:
        # A scrape reads dozens of them: without a buffer and a decoder for each it takes half as long.
        with path.open("rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the whole number that the file says, None where there is none; some drivers write ``N/A``."""
    text = read_text(path) or ""
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() else None


def names(folder: Path) -> list[str]:
    """Return the sorted names in a folder, none where it is not there."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
