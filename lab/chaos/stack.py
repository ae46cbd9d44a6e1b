"""The real servers with the whole rule pack at a scrape of five seconds, for several jobs at once."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from laggard_cli.demo.servers import Servers
from laggard_cli.errors import CommandError
from laggard_cli.rules import render, rules_folder
from laggard_cli.rules.profiles import PRODUCTION, Profile, load_profile

SCRAPE_SECONDS = 5
#: Ranks of the largest job, and its meeting's port.
_RANKS = 8
_PORTS = _RANKS + 1
NODES = 2

#: Limits of a stall, in seconds: of work, of a checkpoint or an evaluation, and of a start.
THRESHOLDS = {"stall_seconds": 10, "stall_pause_seconds": 25, "stall_starting_seconds": 60, "start_skew_seconds": 100}


def profile() -> Profile:
    """Return production's profile at a third of its durations, so that it fits a scrape of five seconds."""
    production = load_profile(rules_folder(), PRODUCTION)
    third = production.evaluation_interval / timedelta(seconds=SCRAPE_SECONDS)
    return replace(
        production,
        name="chaos",
        durations={length: length / third for length in production.durations},
        thresholds=THRESHOLDS,
    )


class Stack:
    """The servers, and places for jobs."""

    def __init__(self, folder: Path, places: int) -> None:
        self.folder = folder
        self.servers = Servers(
            folder, "chaos", places * _PORTS, nodes=NODES, rules=render(profile()), interval=f"{SCRAPE_SECONDS}s"
        )
        ports = self.servers.rank_ports
        self._free = [ports[first : first + _PORTS] for first in range(0, len(ports), _PORTS)]
        self._lock = threading.Lock()
        self._interrupted = threading.Event()

    def pause(self, seconds: float) -> None:
        """Wait. Raises :class:`CommandError` when the suite is interrupted."""
        if self._interrupted.wait(seconds):
            raise CommandError("interrupted")

    def interrupt(self) -> None:
        """End all cases at their next pause."""
        self._interrupted.set()

    @contextmanager
    def place(self) -> Generator[list[int], None, None]:
        """Have a place's ports for oneself: one for the meeting, and one for each rank's metrics."""
        with self._lock:
            ports = self._free.pop()
        try:
            yield ports
        finally:
            with self._lock:
                self._free.append(ports)
