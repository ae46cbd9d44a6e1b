"""What a local run is to be, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from laggard_cli.local_run.place import Place


@dataclass(frozen=True)
class Plan:
    """What the monitor is told."""

    run: str
    place: Place
    profile: str
    """Of the rules."""
    prometheus: str
    """Path of the program."""
    quiet: bool
    """Whether nothing is printed but what keeps the monitor from its work."""
    json: Path | None
    """Where the card is written to as JSON."""
    keep: bool
    """Whether what the servers wrote stays."""
