"""From intervals to steps whose phases add up.

The recorder's events arrive in the order in which they ended. :class:`StepPartition` finds the step boundaries and
gives every nanosecond of a step to exactly one phase: the innermost interval wins, what no interval covers is
``other``. So phases never overlap, none is negative, and their sum is the step.

A step ends at the first batch fetch, without a loader at the first training forward (without a module at the first
backward), after at least one optimizer update. Several updates in between are one step. ``laggard.step()`` names
the steps itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from laggard._recorder import EVALUATION_FORWARD, FIRST_BATCH, LOST, RESUME, STEP_BEGIN, STEP_END, UPDATE, Event
from laggard.conventions import OWN_PHASES, Phase

#: What begins a step: a fetch; in a loop without a loader a forward; in one without a module a backward.
_BOUNDARIES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD)

Interval = tuple[Phase, int, int]
"""A phase with the ``perf_counter_ns`` at which it began and ended."""


@dataclass(frozen=True)
class Step:
    """One finished step. Times are ``perf_counter_ns``; ``phases`` is indexed by :class:`Phase`, in nanoseconds."""

    number: int
    started: int
    ended: int
    phases: tuple[int, ...]
    intervals: tuple[Interval, ...]
    """The step cut into phases, in order and without overlap; ``other`` fills the gaps and is not listed."""
    excluded: str = ""
    """Why the step stays out of the histograms; empty for a step like any other."""

    @property
    def duration(self) -> int:
        """Length of the step in nanoseconds."""
        return self.ended - self.started

    @property
    def own(self) -> int:
        """The rank's own part of the step in nanoseconds."""
        return sum(self.phases[phase] for phase in OWN_PHASES)


@dataclass
class _Open:
    """The step that has begun and not ended."""

    started: int
    intervals: list[Interval] = field(default_factory=list[Interval])
    updated: bool = False
    seen: set[int] = field(default_factory=set[int])
    """Codes of the intervals so far, for what begins the next step."""
    first_batch: bool = False
    incomplete: bool = False


class StepPartition:
    """Turns events into steps. Not thread-safe: one drain feeds it."""

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._number = 0
        self._open: _Open | None = None
        self._batch = _Batch()
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
            if code in (STEP_BEGIN, STEP_END):
                self._explicit = True
                self._mark_step(code, started, finished)
            elif code in (UPDATE, LOST):
                if self._open is not None:
                    self._open.updated |= code == UPDATE
                    self._open.incomplete |= code == LOST
            elif code == FIRST_BATCH:
                self._batch.first = True
            elif code == RESUME:
                self._resumed = True
            else:
                if not self._explicit and self._begins_step(code):
                    self._cut(started, finished)
                if self._open is not None:
                    self._take(code, started, ended)
        return finished

    def finish(self) -> list[Step]:
        """Return the step that was updated but whose end never came, when there is one."""
        step = self._open
        self._open = None
        if step is None or self._explicit or not step.updated:
            return []
        step.incomplete = True
        self._batch.close(step.intervals)
        return [self._close(step, max((end for _, _, end in step.intervals), default=step.started))]

    def _begins_step(self, code: int) -> bool:
        step = self._open
        if step is None:
            return code in _BOUNDARIES
        if not step.updated or code not in _BOUNDARIES:
            return False
        # The kind of event that begins this loop's steps, unless an earlier kind shows up.
        return step.seen.isdisjoint(_BOUNDARIES[: _BOUNDARIES.index(code)])

    def _cut(self, at: int, finished: list[Step]) -> None:
        step, self._open = self._open, _Open(at)
        if step is None:
            return
        step.first_batch |= self._batch.close(step.intervals)
        # Intervals inside the one that begins the new step arrived before it.
        self._open.intervals = [interval for interval in step.intervals if interval[1] >= at]
        step.intervals = [interval for interval in step.intervals if interval[1] < at]
        finished.append(self._close(step, at))

    def _mark_step(self, code: int, at: int, finished: list[Step]) -> None:
        step = self._open
        self._open = None
        if code == STEP_BEGIN:
            self._open = _Open(at)
            self._batch = _Batch()
        elif step is not None:
            step.first_batch |= self._batch.close(step.intervals)
            finished.append(self._close(step, at))

    def _take(self, code: int, started: int, ended: int) -> None:
        step = self._open
        if step is None:
            return
        if code == Phase.DATA:
            step.first_batch |= self._batch.next(step.intervals, started)
        elif code == Phase.CHECKPOINT:
            # All of a checkpoint is checkpoint, its own waits for peers too.
            while step.intervals and step.intervals[-1][1] >= started:
                step.intervals.pop()
        step.seen.add(code)
        self._batch.see(code)
        if code == EVALUATION_FORWARD:
            # Without a loader nothing but its place tells a teacher from an evaluation between two steps.
            phase = Phase.EVALUATION if step.updated and Phase.DATA not in step.seen else Phase.FORWARD
        else:
            phase = Phase(code)
        step.intervals.append((phase, started, ended))

    def _close(self, step: _Open, ended: int) -> Step:
        self._number += 1
        intervals = flatten(step.intervals, step.started, ended)
        phases = [0] * len(Phase)
        for phase, begin, end in intervals:
            phases[phase] += end - begin
        phases[Phase.OTHER] += ended - step.started - sum(phases)
        excluded = ""
        resumed, self._resumed = self._resumed, False
        if step.incomplete:
            excluded = "incomplete"
        elif resumed:
            excluded = "resume"
        elif self._number <= self._warmup_steps:
            excluded = "warmup"
        elif step.first_batch:
            excluded = "first_batch"
        return Step(self._number, step.started, ended, tuple(phases), tuple(intervals), excluded)


class _Batch:
    """Tells evaluation from training, one batch at a time: from one fetch to the next.

    A batch that saw forwards without gradients and no training is an evaluation batch, and all of its time is
    evaluation, host work included. A fetch that nothing follows, after an evaluation batch, is the end of the
    evaluation loader. A forward without gradients in a training batch (a teacher) stays a forward. A checkpoint
    between two evaluation batches stays a checkpoint.
    """

    def __init__(self) -> None:
        #: The batch is the first of its iterator.
        self.first = False
        self._first = 0
        self._started = -1
        self._evaluated = False
        self._trained = False
        self._after_evaluation = False

    def see(self, code: int) -> None:
        """Note what the batch is used for."""
        self._evaluated |= code == EVALUATION_FORWARD
        self._trained |= code in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)

    def next(self, intervals: list[Interval], at: int) -> bool:
        """Judge the batch that the fetch beginning at ``at`` ends; return whether it was a first one of training."""
        evaluation = not self._trained and (self._evaluated or self._after_evaluation)
        if evaluation and self._started >= 0:
            begin = self._started
            checkpoints = [interval for interval in intervals[self._first :] if interval[0] == Phase.CHECKPOINT]
            del intervals[self._first :]
            if intervals and intervals[-1][0] == Phase.EVALUATION and intervals[-1][2] == begin:
                begin = intervals.pop()[1]
            intervals += [(Phase.EVALUATION, begin, at), *checkpoints]
        first = self.first and not evaluation
        self.first = False
        self._after_evaluation = evaluation
        self._evaluated = self._trained = False
        self._first = len(intervals)
        self._started = at
        return first

    def close(self, intervals: list[Interval]) -> bool:
        """End the batch with the step; return whether it was a first one of training."""
        if self._evaluated and not self._trained and intervals:
            self.next(intervals, max(end for _, _, end in intervals))
        first, self.first = self.first, False
        self._first = 0
        self._started = -1
        self._evaluated = self._trained = False
        return first


def flatten(intervals: Iterable[Interval], started: int, ended: int) -> list[Interval]:
    """Cut nested intervals into pieces without overlap, clipped to the step; the innermost interval wins."""
    pieces: list[Interval] = []
    stack: list[tuple[Phase, int]] = []
    now = started

    def advance(to: int) -> None:
        nonlocal now
        while stack and now < to:
            phase, until = stack[-1]
            piece_end = min(until, to)
            if piece_end > now:
                if pieces and pieces[-1][0] == phase and pieces[-1][2] == now:
                    pieces[-1] = (phase, pieces[-1][1], piece_end)
                else:
                    pieces.append((phase, now, piece_end))
                now = piece_end
            if until <= now:
                stack.pop()
        now = max(now, to)

    for phase, begin, end in sorted(intervals, key=lambda interval: (interval[1], -interval[2])):
        begin, end = max(begin, started), min(end, ended)  # noqa: PLW2901 - clipped to the step
        if end <= begin:
            continue
        advance(begin)
        # On one thread intervals nest; one found afterwards may reach past the one around it and is cut there.
        stack.append((phase, min(end, stack[-1][1]) if stack else end))
    advance(ended)
    return pieces
