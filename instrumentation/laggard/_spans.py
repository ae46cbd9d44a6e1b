"""Traces of chosen steps, made afterwards with the times that were measured.

Every rank derives the same trace id from run and step, so the spans of all ranks of one step stand in one trace. Every
``LAGGARD_TRACE_EVERY``-th step is traced, and of very short steps a share of those, on all ranks the same steps. A step
much slower than the recent median is traced as well and marked, for a collector's tail sampling.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from laggard import _providers
from laggard._clocks import unix_ahead_ns
from laggard._identity import Identity
from laggard._report import median, stands_for_others
from laggard._steps import Step
from laggard.shared import metrics
from laggard.shared.attributes import Attribute
from laggard.version import __version__

#: Enough steps for a median that one slow step does not move.
_MEDIAN_STEPS = 16
#: Intervals of one step that become spans; gradient accumulation can have thousands.
_MAX_SPANS = 128
#: Traced steps of one drain: a run in which every step is slow must not pay for it with spans.
_MAX_STEPS = 10


class Spans:
    """Chooses steps and writes their spans. Called by the drain thread only."""

    def __init__(
        self,
        identity: Identity,
        collectives: deque[tuple[str, int, int]],
        every: int,
        slow: float,
        *,
        describe: Callable[[Step], Mapping[str, float]],
    ) -> None:
        self._run = identity.run
        self._attributes = identity.attributes()
        self._collectives = collectives
        self._describe = describe
        self._every = every
        self._slow = slow
        self._durations: deque[int] = deque(maxlen=metrics.RECENT_STEPS)
        self._left = _MAX_STEPS
        self._slow_from = 0

    def begin_drain(self, *, enabled: bool) -> None:
        """Renew the allowance of traced steps, which is none when not enabled, and what is a slow step."""
        self._left = _MAX_STEPS if enabled else 0
        enough = self._slow > 0 and len(self._durations) >= _MEDIAN_STEPS
        self._slow_from = int(self._slow * median(self._durations)) if enough else 0

    def steps(self, steps: Sequence[Step], one_in: int = 1) -> None:
        """Trace those steps that are chosen: slow ones, and of those whose number is chosen one in ``one_in``."""
        self._durations.extend([step.ended - step.started for step in steps if not step.excluded])
        if self._left <= 0:
            return
        slow_from, every = self._slow_from or inf, self._every
        for step in steps:
            slow = step.ended - step.started > slow_from
            chosen = every and step.number % every == 0 and stands_for_others(step.number // every, one_in)
            if (slow or chosen) and self._left > 0:
                self._left -= 1
                self._write(step, slow=slow)

    def _write(self, step: Step, *, slow: bool) -> None:
        offset = unix_ahead_ns()
        attributes = {**self._attributes, Attribute.STEP: step.number}
        # Of the provider that spans go to now: the script may have set one.
        tracer = _providers.tracer_provider().get_tracer(metrics.METER_NAME, __version__)
        root = tracer.start_span(
            "training.step",
            context=step_context(self._run, step.number),
            start_time=step.started + offset,
            attributes={**attributes, **self._describe(step), **({Attribute.STEP_SLOW: True} if slow else {})},
        )
        if root.is_recording():
            inside = trace.set_span_in_context(root)
            for phase, started, ended in step.intervals[:_MAX_SPANS]:
                child = tracer.start_span(
                    f"training.{phase.label}",
                    context=inside,
                    start_time=started + offset,
                    attributes={**attributes, Attribute.PHASE: phase.label},
                )
                child.end(ended + offset)
            for operation, started, ended in collectives_of(step, self._collectives):
                child = tracer.start_span(
                    "training.collective",
                    context=inside,
                    start_time=started + offset,
                    attributes={**attributes, Attribute.COLLECTIVE_OPERATION: operation},
                )
                child.end(ended + offset)
        root.end(step.ended + offset)


def collectives_of(step: Step, collectives: deque[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the waits for a collective inside the step that took a twentieth of it or more."""
    shortest = step.duration // 20
    return [
        (operation, started, ended)
        # Copied first, in one operation: the training thread appends.
        for operation, started, ended in collectives.copy()
        if started >= step.started and ended <= step.ended and ended - started >= shortest
    ]


def step_context(run: str, number: int) -> Context:
    """Return the context that all ranks of a run give to a step's root span: same trace, same absent parent."""
    digest = hashlib.sha256(f"{run}:{number}".encode()).digest()
    parent = SpanContext(
        trace_id=int.from_bytes(digest[:16], "big") or 1,
        span_id=int.from_bytes(digest[16:24], "big") or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(NonRecordingSpan(parent))
