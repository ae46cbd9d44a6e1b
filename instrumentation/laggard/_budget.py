"""What telemetry may cost, and what is given up when it costs more.

The cost is the time of a processor that the hooks on training threads and the drain thread take, as a share of the
steps' time over the last minute. A wait for a processor is no cost: the rest of the machine causes it. Above the budget
the traces of steps go first, then the durations of single collectives and fetches, and what is read from the system is
read less often. Where nobody gets traces, that level is left out. It all comes back, one level at a time, when the cost
of a minute was below half of the budget.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path

_logger = logging.getLogger(__name__)

#: The time over which the cost is taken, and how long a level lasts at least.
WINDOW_SECONDS = 60.0
#: Share of the budget below which a level is taken back: what was given up must fit in again.
_RECOVERY = 0.5

#: What is given up at each level, for the log.
_LEVELS = (
    "nothing is given up any more",
    "traces of steps are given up",
    "durations of single collectives and fetches are given up, memory and workers are looked at less often",
)
#: The level that costs no more than traces.
_TRACES = 1


class Processor:
    """Reckons a thread's time on the wall as time of a processor, from what the kernel says that it waited for one."""

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._before = (0, 0, 0)

    def used(self, thread: int, wall_ns: int) -> int:
        """Return what ``wall_ns`` since the last call were of a processor; ``thread`` is the kernel's number of it."""
        ran, waited = self._read(thread)
        before, self._before = self._before, (thread, ran, waited)
        if before[0] == thread:
            ran, waited = ran - before[1], waited - before[2]
        return wall_ns * ran // (ran + waited) if ran >= 0 and waited > 0 else wall_ns

    def _read(self, thread: int) -> tuple[int, int]:
        """Return how long the thread has run and has waited; zeros where the kernel does not count."""
        try:
            ran, waited, *_ = (self._tasks / str(thread) / "schedstat").read_text().split()
        except (OSError, ValueError):
            return 0, 0
        return int(ran), int(waited)


class Budget:
    """Chooses a level from 0, nothing given up, to 2. Called by the drain thread only."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.level = 0
        #: Time of the measurement, with the cost and the steps' time so far, both in nanoseconds.
        self._window: deque[tuple[float, int, int]] = deque()
        self._steps_ns = 0

    @property
    def optional_rest(self) -> bool:
        """Whether optional signals are given up."""
        return self.level > 1

    def measure(self, now: float, cost_ns: int, steps_ns: int, *, traced: bool) -> bool:
        """Take the cost so far and the time of the steps since the last call; return whether the level changed.

        Args:
            now: seconds of a clock that does not jump.
            cost_ns: of telemetry, so far.
            steps_ns: the time of the steps since the last call.
            traced: whether there are traces to give up.
        """
        self._steps_ns += steps_ns
        window = self._window
        window.append((now, cost_ns, self._steps_ns))
        if now - window[0][0] < WINDOW_SECONDS:
            return False
        began, cost_before, steps_before = window[0]
        while now - window[0][0] >= WINDOW_SECONDS:
            window.popleft()
        steps = self._steps_ns - steps_before
        if not self._share or not steps:
            return False
        share = (cost_ns - cost_before) / steps
        change = 1 if share > self._share else -1 if share < self._share * _RECOVERY else 0
        level = self.level + change
        if level == _TRACES and not traced:
            level += change
        if level == self.level or not 0 <= level < len(_LEVELS):
            return False
        self.level = level
        window.clear()  # the next decision is about the new level only
        _logger.info(
            "telemetry took %.2f %% of the steps in the last %.0f s, the budget is %.2f %%: %s",
            share * 100,
            now - began,
            self._share * 100,
            _LEVELS[level],
        )
        return True
