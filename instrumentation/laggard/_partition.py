"""From intervals to steps whose phases add up.

The recorder's events arrive in the order in which they ended. :class:`StepPartition` finds the step boundaries and
gives every nanosecond of a step to exactly one phase: the innermost interval wins, what no interval covers is
``other``. So phases never overlap, none is negative, and their sum is the step.

An update of the parameters is a step. The step ends where the loop starts over: at the first fetch after an update;
without a fetch at the first forward with gradients after it, or where there is no module at the first backward. An
optimizer updates once in a step: where it updates again and nothing was fetched in between, a step has ended before.
In a loop without gradients that fetches nothing each update ends a step.
Updates of several optimizers are one step, and an update that a gradient scaler leaves out is one too.
``laggard.step()`` names the steps itself; the batch that was fetched just before one belongs to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from laggard._events import (
    CODE_BITS,
    COMPILATION,
    ENDING,
    EVALUATION_FORWARD,
    EXHAUSTED,
    FIRST_BATCH,
    GRADIENT,
    IDENTITY_SHIFT,
    ITERATOR,
    NO_GRAD_FORWARD,
    OPTIMIZER_STEP,
    RESUME,
    SKIPPED,
    STEP_BEGIN,
    STEP_END,
    UPDATE,
    Event,
)
from laggard._loaders import Loaders, Reading
from laggard._steps import Interval, Step, flatten
from laggard.shared.phases import Phase

#: Marks that belong to the step in whose time they stand.
_MARKS = frozenset({UPDATE, SKIPPED, COMPILATION})
#: What an interval's code means; what is an evaluation's turns out when its step ends.
_PHASES = {
    **{int(phase): phase for phase in Phase},
    ENDING: Phase.DATA,
    EVALUATION_FORWARD: Phase.FORWARD,
    NO_GRAD_FORWARD: Phase.FORWARD,
    GRADIENT: Phase.BACKWARD,
    OPTIMIZER_STEP: Phase.OPTIMIZER,
}
#: Plain numbers: to look a member up in its enumeration takes longer than what is done with it, for each event.
_OTHER, _DATA, _FORWARD, _BACKWARD = int(Phase.OTHER), int(Phase.DATA), int(Phase.FORWARD), int(Phase.BACKWARD)
_CHECKPOINT = int(Phase.CHECKPOINT)
_WITHOUT_GRADIENTS = frozenset({EVALUATION_FORWARD, NO_GRAD_FORWARD})
_TRAINING = frozenset({_FORWARD, _BACKWARD, OPTIMIZER_STEP})
_NOTHING = [0] * len(Phase)

#: A step with the first batch of an iterator, or with loaded state, is left out of the histograms, unless one of so
#: many before it was for the same reason: a loop that makes an iterator in each step, or resets its optimizer, has no
#: other steps.
LEFT_OUT_SPACING = 8
#: An optimizer that made no update in so many steps is gone.
_OPTIMIZER_MEMORY = 8


class _Segment:
    """A stretch of a step, from one fetch to the next."""

    __slots__ = ("fetch", "first", "forwarded_at", "reading", "started", "trained_at")

    def __init__(self, reading: Reading, started: int, fetch: int) -> None:
        self.reading = reading
        self.started = started
        #: How long the fetch took, the making of its iterator included, and whether it gave the first batch of one.
        self.fetch = fetch
        self.first = False
        #: When its batch first saw a forward with gradients, and when training began in it; 0 where neither was.
        self.forwarded_at = 0
        self.trained_at = 0


class _Open:
    """The step that has begun and not ended."""

    __slots__ = ("fetched", "forwarded", "incomplete", "intervals", "segments", "started")

    def __init__(self, started: int) -> None:
        self.started = started
        self.intervals: list[Interval] = []
        self.segments: list[_Segment] = []
        #: It trains on a batch that was fetched in it; it has a forward with gradients.
        self.fetched = False
        self.forwarded = False
        self.incomplete = False


class StepPartition:
    """Turns events into steps. Not thread-safe: one drain feeds it."""

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._number = 0
        self._open: _Open | None = None
        #: First and newest time of each kind of mark since the open step began.
        self._marks: dict[int, tuple[int, int]] = {}
        #: The newest time of any mark, an update's included.
        self._marked = 0
        self._loaders = Loaders()
        #: Iterators made since anything was trained, and not fetched from, by their loaders: from when to when.
        self._made: dict[int, tuple[int, int]] = {}
        #: The end of the newest fetch.
        self._fetched = 0
        #: Optimizers that have updated in the open step, with the time; and all, with the number of their newest step.
        self._updated: dict[int, int] = {}
        self._optimizers: dict[int, int] = {}
        #: An optimizer has updated twice, so that all that update in a step are known.
        self._repeats = False
        #: The optimizer that updated last, and those of which two updates followed one another.
        self._newest = -1
        self._alone: set[int] = set()
        #: Nothing was trained since the newest update; and where that ended, if it ever has.
        self._idle = True
        self._restarted: int | None = None
        #: The newest step that was left out, by the reason.
        self._left_out: dict[str, int] = {}
        #: The script names its steps; one of them has begun and not ended.
        self._explicit = False
        self._named = False
        self._resumed = False

    @property
    def steps(self) -> int:
        """Steps found so far."""
        return self._number

    def feed(self, events: Iterable[Event]) -> list[Step]:
        """Take more events and return the steps that they finish."""
        finished: list[Step] = []
        for code, started, ended in events:
            kind = code & CODE_BITS
            if kind == _DATA:
                self._fetch(code >> IDENTITY_SHIFT, started, ended, finished)
            elif kind in _PHASES:
                self._feed_interval(code, started, ended, finished)
            elif kind == ITERATOR:
                self._made[code >> IDENTITY_SHIFT] = started, ended
            else:
                self._feed_mark(code, started, finished)
        return finished

    def finish(self) -> list[Step]:
        """Return the step that was updated but whose end never came, when there is one."""
        step = self._open
        self._open = None
        if step is None or self._explicit or UPDATE not in self._marks:
            return []
        step.incomplete = True
        ended = max((end for _, _, end in step.intervals), default=step.started)
        return [self._close(step, ended, self._marks)]

    def _feed_mark(self, code: int, at: int, finished: list[Step]) -> None:
        if code in _MARKS:
            if code == UPDATE:
                self._update(0, at, finished)
                self._train(code, at)
            self._mark(code, at)
        elif code in (STEP_BEGIN, STEP_END):
            self._explicit = True
            self._mark_step(code, at, finished)
        elif code in (FIRST_BATCH, EXHAUSTED):
            first = code == FIRST_BATCH
            reading = self._loaders.first() if first else self._loaders.exhausted()
            if not first and self._explicit and not self._named:
                self._open = None
            if reading is not None and self._open is not None and self._open.segments:
                self._open.segments[-1].reading = reading
                self._open.segments[-1].first = first
        elif code == RESUME:
            self._resumed = True
        elif self._open is not None:  # something was lost
            self._open.incomplete = True

    def _mark(self, code: int, at: int) -> None:
        self._marks[code] = (self._marks.get(code, (at,))[0], at)
        self._marked = max(self._marked, at)

    def _fetch(self, loader: int, started: int, ended: int, finished: list[Step]) -> None:
        # An iterator's first fetch begins where the iterator was made, unless something else was fetched in between.
        made = self._made.pop(loader, None)
        began = made[0] if made is not None and made[0] >= self._fetched else started
        self._fetched = ended
        if self._explicit and not self._named:
            self._open = None  # the step's batch is the newest
        if self._open is None or (not self._explicit and UPDATE in self._marks):
            self._cut(began, finished)
        reading = self._loaders.fetch(loader)
        step = self._open
        if step is None:
            return
        waited = ended - started
        if made is not None and made[0] >= step.started:
            waited += made[1] - made[0]
            step.intervals.append((Phase.DATA, *made))
        step.segments.append(_Segment(reading, max(began, step.started), waited))
        step.intervals.append((Phase.DATA, started, ended))

    def _feed_interval(self, code: int, started: int, ended: int, finished: list[Step]) -> None:
        """Take an interval that is no fetch."""
        kind = code & CODE_BITS
        phase = _PHASES[kind]
        if kind in _TRAINING:
            if kind == OPTIMIZER_STEP:
                self._update(code >> IDENTITY_SHIFT, ended, finished)
                self._mark(UPDATE, ended)
            else:
                self._begin_training(kind, started, finished)
            self._train(kind, started)
        elif kind in _WITHOUT_GRADIENTS:
            self._loaders.forward(gradients=False)
            # Without a batch the mode alone tells an evaluation between two steps from a rollout.
            if kind == EVALUATION_FORWARD and self._idle and self._restarted is not None and not self._loaders.open:
                phase = Phase.EVALUATION
        step = self._open
        if step is None:
            return
        if kind == _CHECKPOINT:
            # All of a checkpoint is checkpoint, its own waits for peers too.
            while step.intervals and step.intervals[-1][1] >= started:
                step.intervals.pop()
        elif phase is Phase.EVALUATION and step.intervals and step.intervals[-1][0] == phase:
            # From its first forward to its last: what is between them is the evaluation's host work.
            started = step.intervals.pop()[1]
        step.intervals.append((phase, started, ended))

    def _train(self, kind: int, started: int) -> None:
        """Take note of something that only training does."""
        self._made.clear()
        if kind == _FORWARD:
            self._loaders.forward(gradients=True)
        else:
            self._loaders.train(backward=kind == _BACKWARD)
        step = self._open
        if step is None:
            return
        step.forwarded |= kind == _FORWARD
        if step.segments:
            segment = step.segments[-1]
            if kind == _FORWARD and segment.reading.open:
                segment.forwarded_at = segment.forwarded_at or started
            else:
                segment.trained_at = segment.trained_at or started
            step.fetched |= segment.reading.training

    def _begin_training(self, kind: int, at: int, finished: list[Step]) -> None:
        """Take a forward with gradients or a backward: the loop may start over here."""
        step = self._open
        if step is not None and kind == _BACKWARD and step.forwarded:
            return
        if self._idle:
            self._idle = False
            self._restarted = at
        if self._explicit:
            return
        if step is None or (
            UPDATE in self._marks
            and not step.fetched
            and self._repeats
            and all(optimizer in self._updated for optimizer in self._optimizers)
        ):
            self._cut(at, finished)

    def _update(self, optimizer: int, at: int, finished: list[Step]) -> None:
        """Take an update. The second one of an optimizer is of the next step, if the loop started over in between."""
        before = self._updated.get(optimizer)
        if optimizer == self._newest:
            self._alone.add(optimizer)
        known = optimizer in self._optimizers
        self._repeats |= known
        # One that comes when all that update in a step are known takes the place of another. So does one of two that
        # each update again and again by themselves: of tasks in turns, or of epochs of an actor and of its critic.
        replaces = self._repeats if not known else {optimizer, self._newest} <= self._alone
        if replaces and self._open is not None and not self._open.fetched:
            before = max(self._updated.values(), default=None)
        self._newest = optimizer
        # A loop that never shows where it starts over, as one without gradients, does so where it has updated.
        restarted = before if self._restarted is None else self._restarted
        if before is not None and restarted is not None and before <= restarted and not self._explicit:
            self._cut(restarted, finished)
        self._updated[optimizer] = at
        self._optimizers[optimizer] = self._number
        self._idle = True

    def _cut(self, at: int, finished: list[Step]) -> None:
        """End the open step at ``at``; what has arrived and began later is of the next one."""
        step, new = self._open, _Open(at)
        self._open = new
        marks, self._marks = self._marks, {}
        updated, self._updated = self._updated, {}
        if self._marked > at:
            self._marks = {code: (end, end) for code, (_, end) in marks.items() if end > at}
            self._updated = {optimizer: end for optimizer, end in updated.items() if end > at}
            marks = {code: times for code, times in marks.items() if times[0] <= at}
        if step is None:
            return
        intervals = step.intervals
        kept = len(intervals)
        while kept and intervals[kept - 1][1] >= at:
            kept -= 1
        if kept < len(intervals):
            new.intervals = intervals[kept:]
            new.forwarded = any(phase == _FORWARD for phase, _, _ in new.intervals)
            del intervals[kept:]
        finished.append(self._close(step, at, marks))

    def _mark_step(self, code: int, at: int, finished: list[Step]) -> None:
        step, marks = self._open, self._marks
        self._named = code == STEP_BEGIN
        if self._named:
            # A loop over a loader has fetched the step's batch before.
            if step is None or not step.segments or UPDATE in marks:
                self._open, self._marks = _Open(at), {}
            return
        self._open, self._marks = None, {}
        if step is not None:
            # Who names a step trains in it, whatever it updates with.
            self._loaders.train(backward=False)
            finished.append(self._close(step, at, marks))

    def _close(self, step: _Open, ended: int, marks: Collection[int]) -> Step:
        self._number += 1
        if len(self._optimizers) > 1:
            gone = self._number - _OPTIMIZER_MEMORY
            self._optimizers = {optimizer: number for optimizer, number in self._optimizers.items() if number > gone}
            self._alone &= self._optimizers.keys()
        first_batch = _label(step, ended) if step.segments else 0
        intervals = flatten(step.intervals, step.started, ended)
        phases = _NOTHING[:]
        for phase, begin, end in intervals:
            phases[phase] += end - begin
        phases[_OTHER] += ended - step.started - sum(phases)
        excluded = ""
        resumed, self._resumed = self._resumed, False
        if step.incomplete:
            excluded = "incomplete"
        elif resumed and self._leaves_out("resume"):
            excluded = "resume"
        elif self._number <= self._warmup_steps:
            excluded = "warmup"
        elif COMPILATION in marks:
            excluded = "compile"
        elif first_batch and self._leaves_out("first_batch"):
            excluded = "first_batch"
        return Step(
            self._number,
            step.started,
            ended,
            tuple(phases),
            tuple(intervals),
            excluded,
            SKIPPED in marks,
            first_batch,
        )

    def _leaves_out(self, reason: str) -> bool:
        """Return whether none of the last steps was left out for this reason, and take note that this one is."""
        out = self._number - self._left_out.get(reason, -LEFT_OUT_SPACING) >= LEFT_OUT_SPACING
        if out:
            self._left_out[reason] = self._number
        return out


def _label(step: _Open, ended: int) -> int:
    """Make evaluation of what is an evaluation's; return how long the step waited for first batches to train on."""
    first_batch = 0
    spans: list[Interval] = []
    for number, segment in enumerate(step.segments):
        if not segment.reading.evaluation:
            first_batch += segment.fetch * segment.first
            continue
        following = step.segments[number + 1].started if number + 1 < len(step.segments) else ended
        # A forward with gradients is training's, but where the evaluation has such forwards itself.
        end = (not segment.reading.gradients and segment.forwarded_at) or segment.trained_at or following
        if spans and spans[-1][2] == segment.started:
            spans[-1] = (Phase.EVALUATION, spans[-1][1], end)
        else:
            spans.append((Phase.EVALUATION, segment.started, end))
    if spans:
        # All of it, host work and waits for peers included, but for checkpoints.
        outside = [
            interval
            for interval in step.intervals
            if interval[0] == _CHECKPOINT or not any(begin <= interval[1] < end for _, begin, end in spans)
        ]
        step.intervals = [*outside, *spans]
    return first_batch
