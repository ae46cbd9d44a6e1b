"""What a rank tells of itself: its finished steps, its hooks' measurements, and what telling it took.

Steps that end before the run has a name wait for it. Of very short steps some stand for all, and when telemetry costs
more than its budget, parts of it are given up.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from math import ceil
from typing import TYPE_CHECKING

from laggard import _providers, _signals
from laggard._budget import Budget, Processor
from laggard._events import CODE_BITS, GRADIENT, OPTIMIZER_STEP
from laggard._part import DRAINS_A_SCRAPE, Part
from laggard._report import Report
from laggard._spans import Spans
from laggard.shared import environment, metrics
from laggard.shared.metrics import DROP_REASONS
from laggard.shared.phases import Phase, RankState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from laggard._events import Event
    from laggard._identity import Identity
    from laggard._recorder import Recorder
    from laggard._steps import Step
    from laggard.shared.statefile import Facts

#: What the recorder calls a phase.
_CODES = {phase: {int(phase)} for phase in Phase}
_CODES[Phase.BACKWARD].add(GRADIENT)
_CODES[Phase.OPTIMIZER].add(OPTIMIZER_STEP)
#: A phase without any time in so many steps is not seen any more: a loader may have moved to a thread of its own.
_SEEN_STEPS = 64
#: Steps kept while the run's name is not known yet.
_MAX_PENDING = 4096


class Publisher:
    """Reports what one drain after the other found. Called by the drain thread only, but for :meth:`drop`."""

    def __init__(self, recorder: Recorder, parts: list[Part], slow_collectives: deque[tuple[str, int, int]]) -> None:
        self._recorder = recorder
        self._parts = parts
        self._slow_collectives = slow_collectives
        self._report: Report | None = None
        self._spans: Spans | None = None
        self._pending: list[Step] = []
        #: Newest step since the last report, if there is one.
        self._newest: Step | None = None
        #: Length of the steps since the last report.
        self._steps_ns = 0
        self._step_rate = environment.number(environment.LAGGARD_STEP_RATE, 25)
        #: Number and length of the measured steps so far, the older ones with less weight.
        self._recent_steps = self._recent_ns = 0.0
        #: Steps so far; and for each phase that was seen the number of the newest step with time in it.
        self._ended = 0
        self._newest_seen: dict[Phase, int] = {}
        self._dropped: dict[str, int] = dict.fromkeys(DROP_REASONS, 0)
        self._reported_dropped = dict(self._dropped)
        self._reported_self_time = 0
        #: Since there is somebody to report.
        self._drains = 0
        self._processor = Processor()
        self._parts_ns = 0
        self._budget = Budget(environment.number(environment.LAGGARD_BUDGET, 0.5) / 100)

    @property
    def open(self) -> bool:
        """Whether run and rank are known, so that there is somebody to report."""
        return self._report is not None

    def drop(self, reason: str, count: int = 1) -> None:
        """Count what does not reach the export, by one of ``DROP_REASONS``. On any thread."""
        self._dropped[reason] += count

    def dropped_so_far(self, reason: str, count: int) -> None:
        """Say how much has not reached the export in all."""
        self._dropped[reason] = count

    def begin(self, identity: Identity, facts: Facts, layout: str) -> None:
        """Report as this rank from now on, and the steps that waited for it."""
        self._report = Report(identity, facts, layout)
        self._spans = Spans(
            identity,
            self._slow_collectives,
            environment.whole_number(environment.LAGGARD_TRACE_EVERY, 100),
            environment.number(environment.LAGGARD_TRACE_SLOW, 2.0),
            describe=self._describe,
        )
        self.report([])

    def note(self, events: Iterable[Event]) -> None:
        """Take note of the phases that there are before the first step has ended."""
        if not self._ended:
            codes = {code & CODE_BITS for code, _, _ in events}
            self._newest_seen.update({phase: 0 for phase in Phase if codes & _CODES[phase]})

    def begin_drain(self) -> None:
        """Renew the allowance of traces."""
        if self._spans is not None:
            self._spans.begin_drain(enabled=self._budget.level == 0 and _providers.traces_arrive())

    def report(self, steps: list[Step]) -> None:
        """Report finished steps."""
        if steps:
            self._newest = steps[-1]
            if not self._ended:  # the fetches that were noted may have been an evaluation's
                self._newest_seen.pop(Phase.DATA, None)
            self._steps_ns += sum([step.ended - step.started for step in steps])
            phases = zip(Phase, zip(*[step.phases for step in steps], strict=True), strict=True)
            for phase, durations in phases:
                if any(durations):
                    newest = next(number for number in range(len(steps), 0, -1) if durations[number - 1])
                    self._newest_seen[phase] = self._ended + newest
            self._ended += len(steps)
        self._pending += steps
        report, spans = self._report, self._spans
        if report is None or spans is None:
            surplus = max(0, len(self._pending) - _MAX_PENDING)
            del self._pending[:surplus]
            self.drop("no_run", surplus)
            return
        steps, self._pending = self._pending, []
        if steps:
            one_in = self._one_in()
            report.steps(steps, one_in)
            spans.steps(steps, one_in)
            measured = [step.ended - step.started for step in steps if not step.excluded]
            self._recent_steps += len(measured)
            self._recent_ns += sum(measured)

    def _one_in(self) -> int:
        """Return how many steps one that goes into histograms and traces stands for, by the length of the steps before.

        The length of steps decides, not the clock: a pause changes nothing. The length of the step itself has no part
        in it, or slow steps would be chosen more often than others.
        """
        if not self._step_rate or not self._recent_ns:
            return 1
        return max(1, ceil(self._recent_steps * 1e9 / (self._step_rate * self._recent_ns)))

    def end_drain(self, state: RankState, *, last: bool = False) -> None:
        """Report what the steps have in common, the hooks' measurements, the rank's state and what all this took."""
        report = self._report
        if report is not None:
            self._report_rest(report, state, last=last)
        self._recent_steps /= 2
        self._recent_ns /= 2

    def _report_rest(self, report: Report, state: RankState, *, last: bool = False) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            report.newest(newest)
        drains, self._drains = self._drains, self._drains + 1
        if last or drains % DRAINS_A_SCRAPE == 0:
            report.recent()
        for part in self._parts:
            if part.due(last=last):
                part.guarded(part.report)(report)
        report.state(state)
        seen = [phase for phase, step in self._newest_seen.items() if self._ended - step < _SEEN_STEPS]
        report.signals(_signals.available(self._parts, seen))
        self_time = self._recorder.self_time_ns
        dropped = {reason: count - self._reported_dropped[reason] for reason, count in self._dropped.items()}
        used = self._processor.used(self._training_thread(), self_time - self._reported_self_time)
        report.telemetry(used, {reason: n for reason, n in dropped.items() if n})
        self._parts_ns += used
        self._keep_to_budget(self._parts_ns + time.thread_time_ns())
        report.measure(metrics.TELEMETRY_LEVEL, self._budget.level)
        self._reported_self_time = self_time
        self._reported_dropped = dict(self._dropped)

    def _training_thread(self) -> int:
        """Return the kernel's number of the thread that trains."""
        known = (thread.native_id for thread in threading.enumerate() if thread.ident == self._recorder.thread)
        return next(known, None) or os.getpid()

    def _keep_to_budget(self, cost_ns: int) -> None:
        steps_ns, self._steps_ns = self._steps_ns, 0
        if self._budget.measure(time.monotonic(), cost_ns, steps_ns, traced=_providers.traces_arrive()):
            for part in self._parts:
                part.guarded(part.rest if self._budget.optional_rest else part.resume)()

    def _describe(self, step: Step) -> dict[str, float]:
        described: dict[str, float] = {}
        for part in self._parts:
            if part.installed:
                described.update(part.step_attributes(step))
        return described
