"""The stopwatch of a field script: what the script itself knows of its steps and of the phases in them.

A script names a phase around its own calls and says where a step has been trained. What lies outside of all names is
``other``; of nested names the innermost has the time. Nothing here needs laggard: only where the environment names a
folder for results, the stopwatch leaves its notes there, and asks laggard for its steps if it is in the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Folder for the notes of each process.
FOLDER = "FIELD_FOLDER"


class Stopwatch:
    """Notes phases, steps and losses of one process."""

    def __init__(self, name: str = "") -> None:
        self.name = name or os.environ.get("RANK", "0")
        self._open: list[str] = []
        self._since = 0
        self.pieces: list[tuple[str, int, int]] = []
        self.steps: list[int] = []
        self.losses: list[str] = []
        #: When the thread's statistics were read, and how long it had waited for a processor by then.
        self.waits: list[tuple[int, int]] = []
        #: Steps as a framework counts them, where it is the framework's loop.
        self.counted: int | None = None
        #: Nanoseconds of processor time, those of waits for it, and time slices: sched-stats.rst of Linux.
        self._statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._offset = min((_offset() for _ in range(9)), key=lambda taken: taken[0])[1]

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Note the time inside as this phase."""
        self._cut(phase)
        try:
            yield
        finally:
            self._cut(None)

    def _cut(self, phase: str | None) -> None:
        now = time.perf_counter_ns()
        if self._open:
            self.pieces.append((self._open[-1], self._since, now))
        if phase is None:
            self._open.pop()
        else:
            self._open.append(phase)
        self.waits.append((now, int(os.pread(self._statistics, 64, 0).split()[1])))
        self._since = time.perf_counter_ns()

    def iterator(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over a loader; the wait for it is data."""
        with self("data"):
            return iter(loader)

    def fetch(self, iterator: Iterator[Any]) -> Any:
        """Return the next batch; the wait for it is data."""
        with self("data"):
            return next(iterator)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over a loader; each wait for a batch is data, those for its iterator and for its end too."""
        iterator = self.iterator(loader)
        while True:
            try:
                batch = self.fetch(iterator)
            except StopIteration:
                return
            yield batch

    def step(self, loss: Any = 0.0) -> None:
        """Note that a step has been trained: its last update is done."""
        self.steps.append(time.perf_counter_ns())
        self.losses.append(float(loss.detach() if hasattr(loss, "detach") else loss).hex())

    def done(self) -> None:
        """Leave the notes."""
        folder = os.environ.get(FOLDER)
        if not folder:
            return
        notes = {
            "name": self.name,
            "pid": os.getpid(),
            "steps": [at + self._offset for at in self.steps],
            "losses": self.losses,
            "counted": self.counted,
            "waits": [(at + self._offset, waited) for at, waited in self.waits],
            "pieces": [(phase, begin + self._offset, end + self._offset) for phase, begin, end in self.pieces],
        }
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(notes))
        laggard = sys.modules.get("laggard")
        if laggard is not None:
            laggard.dump_trace(Path(folder, f"{os.getpid()}.jsonl"))


def _offset() -> tuple[int, int]:
    """Return how long it took to read both clocks, and what turns the stopwatch's into unix time."""
    before = time.perf_counter_ns()
    now = time.time_ns()
    took = time.perf_counter_ns() - before
    return took, now - before - took // 2
