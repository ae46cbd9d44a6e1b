"""From intervals to steps whose phases add up.

The recorder's events arrive in the order in which they ended. :class:`StepPartition` finds the step boundaries and
gives every nanosecond of a step to exactly one phase: the innermost interval wins, what no interval covers is
``other``. So phases never overlap, none is negative, and their sum is the step.

A step ends at the first batch fetch, without a loader at the first training forward (without a module at the first
backward), after at least one optimizer update. Several updates in between are one step, and an update that a gradient
scaler leaves out is one too. ``laggard.step()`` names the steps itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laggard._batch import Batch, Interval
from laggard._recorder import (
    COMPILED,
    EVALUATION_FORWARD,
    EXHAUSTED,
    FIRST_BATCH,
    OPTIMIZER_STEP,
    RESUME,
    SKIPPED,
    STEP_BEGIN,
    STEP_END,
    UPDATE,
    Event,
)
from laggard.conventions import OWN_PHASES, Phase

#: What begins a step: a fetch; in a loop without a loader a forward; in one without a module a backward.
_BOUNDARIES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD)
#: Marks that belong to the step in whose time they stand.
_MARKS = frozenset({UPDATE, SKIPPED, COMPILED})
#: What an interval's code means, before its batch is judged.
_PHASES = {**{int(phase): phase for phase in Phase}, EVALUATION_FORWARD: Phase.FORWARD, OPTIMIZER_STEP: Phase.OPTIMIZER}
_OWN = tuple(int(phase) for phase in OWN_PHASES)
#: Plain numbers: to look a member up in its enumeration takes longer than what is done with it, for each event.
_OTHER, _DATA, _CHECKPOINT = int(Phase.OTHER), int(Phase.DATA), int(Phase.CHECKPOINT)
_NOTHING = [0] * len(Phase)


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

    @property
    def duration(self) -> int:
        """Length of the step in nanoseconds."""
        return self.ended - self.started

    @property
    def own(self) -> int:
        """The rank's own part of the step in nanoseconds."""
        phases = self.phases
        return sum([phases[phase] for phase in _OWN])


class _Open:
    """The step that has begun and not ended."""

    __slots__ = ("first_batch", "incomplete", "intervals", "seen", "started")

    def __init__(self, started: int) -> None:
        self.started = started
        self.intervals: list[Interval] = []
        #: Codes of the intervals so far, for what begins the next step. A fetch counts once its batch is trained on.
        self.seen: set[int] = set()
        self.first_batch = False
        self.incomplete = False


class StepPartition:
    """Turns events into steps. Not thread-safe: one drain feeds it."""

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._number = 0
        self._open: _Open | None = None
        #: First and newest time of each kind of mark since the open step began.
        self._marks: dict[int, tuple[int, int]] = {}
        self._batch = Batch()
        self._explicit = False
        self._resumed = False

    @property
    def steps(self) -> int:
        """Steps found so far."""
        return self._number

    def feed(self, events: Iterable[Event]) -> list[Step]:
        """Take more events and return the steps that they finish."""
        finished: list[Step] = []
        for code, started, ended in events:
            phase = _PHASES.get(code)
            if phase is not None:
                if code in _BOUNDARIES and not self._explicit and self._begins_step(code):
                    self._cut(started, finished)
                if self._open is not None:
                    self._take(self._open, phase, code, started, ended)
                if code == OPTIMIZER_STEP:
                    self._mark(UPDATE, ended)
            elif code in _MARKS:
                self._mark(code, ended)
            elif code in (STEP_BEGIN, STEP_END):
                self._explicit = True
                self._mark_step(code, started, finished)
            else:
                self._note(code)
        return finished

    def _mark(self, code: int, at: int) -> None:
        self._marks[code] = (self._marks.get(code, (at,))[0], at)

    def _note(self, code: int) -> None:
        """Take a mark that belongs to the newest batch, to the step that is open or to the one to come."""
        if code == EXHAUSTED:
            self._batch.exhausted()
        elif code == FIRST_BATCH:
            self._batch.first = True
        elif code == RESUME:
            self._resumed = True
        elif self._open is not None:  # something was lost
            self._open.incomplete = True

    def finish(self) -> list[Step]:
        """Return the step that was updated but whose end never came, when there is one."""
        step = self._open
        self._open = None
        if step is None or self._explicit or UPDATE not in self._marks:
            return []
        step.incomplete = True
        self._batch.close(step.intervals)
        ended = max((end for _, _, end in step.intervals), default=step.started)
        return [self._close(step, ended, set(self._marks))]

    def _begins_step(self, code: int) -> bool:
        step = self._open
        if step is None:
            return True
        if UPDATE not in self._marks:
            return False
        # The kind of event that begins this loop's steps, unless an earlier kind shows up.
        return step.seen.isdisjoint(_BOUNDARIES[: _BOUNDARIES.index(code)])

    def _cut(self, at: int, finished: list[Step]) -> None:
        step, self._open = self._open, _Open(at)
        # What was found inside the interval that begins the new step arrived before it.
        marks, self._marks = self._marks, {code: (end, end) for code, (_, end) in self._marks.items() if end > at}
        if step is None:
            return
        step.first_batch |= self._batch.close(step.intervals)
        self._open.intervals = [interval for interval in step.intervals if interval[1] >= at]
        step.intervals = [interval for interval in step.intervals if interval[1] < at]
        finished.append(self._close(step, at, {code for code, (begin, _) in marks.items() if begin <= at}))

    def _mark_step(self, code: int, at: int, finished: list[Step]) -> None:
        step = self._open
        self._open = None
        if code == STEP_BEGIN:
            self._open = _Open(at)
            self._batch = Batch()
            self._marks = {}
        elif step is not None:
            step.first_batch |= self._batch.close(step.intervals)
            finished.append(self._close(step, at, set(self._marks)))

    def _take(self, step: _Open, phase: Phase, code: int, started: int, ended: int) -> None:
        batch = self._batch
        if code == _DATA:
            step.first_batch |= batch.next(step.intervals, started)
        else:
            step.seen.add(code)
            if code == _CHECKPOINT:
                # All of a checkpoint is checkpoint, its own waits for peers too.
                while step.intervals and step.intervals[-1][1] >= started:
                    step.intervals.pop()
            batch.see(code)
            if batch.fetched and batch.trained:
                step.seen.add(_DATA)
            # Without a loader nothing but its place tells a teacher from an evaluation between two steps.
            if code == EVALUATION_FORWARD and UPDATE in self._marks and not batch.fetched:
                phase = Phase.EVALUATION
        step.intervals.append((phase, started, ended))

    def _close(self, step: _Open, ended: int, marks: set[int]) -> Step:
        self._number += 1
        intervals = flatten(step.intervals, step.started, ended)
        phases = _NOTHING[:]
        for phase, begin, end in intervals:
            phases[phase] += end - begin
        phases[_OTHER] += ended - step.started - sum(phases)
        excluded = ""
        resumed, self._resumed = self._resumed, False
        if step.incomplete:
            excluded = "incomplete"
        elif resumed:
            excluded = "resume"
        elif self._number <= self._warmup_steps:
            excluded = "warmup"
        elif COMPILED in marks:
            excluded = "compile"
        elif step.first_batch:
            excluded = "first_batch"
        return Step(self._number, step.started, ended, tuple(phases), tuple(intervals), excluded, SKIPPED in marks)


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
        """Give the time until ``to`` to the open intervals, the innermost first."""
        nonlocal now
        while around and now < to:
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
