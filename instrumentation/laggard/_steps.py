"""What a step is, and how its intervals are cut into phases that add up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laggard.shared.phases import OWN_PHASES, Phase

Interval = tuple[Phase, int, int]
"""A phase with the ``perf_counter_ns`` at which it began and ended."""

_OWN = tuple(int(phase) for phase in OWN_PHASES)


class Step(NamedTuple):
    """One finished step. Times are ``perf_counter_ns``; ``phases`` is indexed by :class:`Phase`, in nanoseconds."""

    number: int
    started: int
    ended: int
    phases: tuple[int, ...]
    intervals: tuple[Interval, ...]
    """The step cut into phases, in order and without overlap; ``other`` fills the gaps and is not listed."""
    excluded: str = ""
    """Why the step stays out of the histograms; empty for a step like any other."""
    skipped: bool = False
    """Whether a gradient scaler left an update out."""
    first_batch: int = 0
    """How long it waited for the first batches of iterators, in nanoseconds."""

    @property
    def duration(self) -> int:
        """Length of the step in nanoseconds."""
        return self.ended - self.started

    @property
    def own(self) -> int:
        """The rank's own part of the step in nanoseconds."""
        phases = self.phases
        return sum([phases[phase] for phase in _OWN])


def flatten(intervals: Sequence[Interval], started: int, ended: int) -> Sequence[Interval]:
    """Cut nested intervals into pieces without overlap, clipped to the step; the innermost interval wins."""
    now = started
    for _, begin, end in intervals:
        if not now <= begin < end <= ended:
            return _cut_nested(intervals, started, ended)
        now = end
    return intervals


def _cut_nested(intervals: Iterable[Interval], started: int, ended: int) -> list[Interval]:
    pieces: list[Interval] = []
    around: list[tuple[Phase, int]] = []
    now = started

    def fill(to: int) -> None:
        """Give the time until ``to`` to the open intervals, the innermost first, and close those that ended."""
        nonlocal now
        while around and (now < to or around[-1][1] <= now):
            phase, until = around[-1]
            end = min(until, to)
            if end > now:
                if pieces and pieces[-1][0] == phase and pieces[-1][2] == now:
                    pieces[-1] = (phase, pieces[-1][1], end)
                else:
                    pieces.append((phase, now, end))
                now = end
            if until <= now:
                around.pop()
        now = max(now, to)

    for phase, begin, end in sorted(intervals, key=_outermost_first):
        begin, end = max(begin, started), min(end, ended)  # noqa: PLW2901 - clipped to the step
        if end <= begin:
            continue
        fill(begin)
        # On one thread intervals nest; one found afterwards may reach past the one around it and is cut there.
        around.append((phase, min(end, around[-1][1]) if around else end))
    fill(ended)
    return pieces


def _outermost_first(interval: Interval) -> tuple[int, int]:
    return interval[1], -interval[2]
