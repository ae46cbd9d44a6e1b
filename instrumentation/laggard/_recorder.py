"""The hot path: what runs on the training thread, and nothing else.

A hook calls :meth:`Recorder.begin` and :meth:`Recorder.end` around the call that it times. Both append or store and
return; the drain thread takes the events about once a second. Nothing here may raise, block or allocate without
bound, and every nanosecond spent here is counted in :attr:`Recorder.self_time_ns`.
"""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns

from laggard.conventions import Phase
from laggard.statefile import PHASE, PROGRESS, boottime_ns

Event = tuple[int, int, int]
"""A code with the ``perf_counter_ns`` at which it began and ended. The code is a phase or one of the codes below."""

Token = tuple[int, int, int]
"""An open interval: its code, the phase around it, and the ``perf_counter_ns`` at which it began."""

# Marks: events without a length.
UPDATE = 16  # an optimizer changed the parameters, or a gradient scaler decided not to
FIRST_BATCH = 17  # the fetch that just ended was the first of its iterator, workers were started
STEP_BEGIN = 18  # `laggard.step()` was entered; from then on the steps are the ones that the script names
STEP_END = 19
SKIPPED = 32  # a gradient scaler found gradients that are not finite, the update was left out
COMPILED = 33  # the compiler began to work on code that is about to run
RESUMED = 34  # the state of an optimizer was loaded
EXHAUSTED = 35  # the fetch that just ended found the end of its loader, not a batch

#: A forward without gradients: evaluation, or a teacher inside a training step. The low bits say evaluation, which is
#: what the state file shows until the partition knows better.
EVALUATION_FORWARD = 16 | Phase.EVALUATION
_PHASE_BITS = 15

#: Events kept before the process proves that it trains: an inference job never gets further.
EARLY_CAPACITY = 1024
#: Events kept between two drains: several seconds of steps below a millisecond, about 10 MB.
CAPACITY = 65536

_PHASE_SHIFT = 56


class Recorder:
    """Bounded buffer of phase intervals of the training thread, mirrored into the rank's state file.

    Reads and writes of the attributes rely on each being a single operation; no lock is taken on the hot path.
    """

    __slots__ = (
        "_boottime_offset_ns",
        "backwards",
        "capacity",
        "dropped",
        "enabled",
        "events",
        "failures",
        "phase",
        "self_time_ns",
        "thread",
        "words",
    )

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.capacity = EARLY_CAPACITY
        self.dropped = 0
        self.failures = 0
        self.enabled = True
        self.self_time_ns = 0
        #: Backward passes begun.
        self.backwards = 0
        #: Identity of the thread that trains, known from its first backward on; others are not recorded.
        self.thread = 0
        self.phase: int = Phase.OTHER
        #: Live words of the state file, while there is one.
        self.words: memoryview[int] | None = None
        self._boottime_offset_ns = boottime_ns() - perf_counter_ns()

    def begin(self, code: int) -> Token | None:
        """Enter a phase. The result goes to :meth:`end`; ``None`` on a thread that does not train."""
        entered = perf_counter_ns()
        if not self.enabled or (self.thread and self.thread != get_ident()):
            return None
        outer = self.phase
        phase = self.phase = code & _PHASE_BITS
        try:
            words = self.words
            if words is not None:
                words[PHASE] = phase << _PHASE_SHIFT | entered + self._boottime_offset_ns
                words[PROGRESS] += 1
        except Exception:
            self._detach()
        started = perf_counter_ns()
        self.self_time_ns += started - entered
        return code, outer, started

    def end(self, token: Token | None) -> int:
        """Leave a phase; return the ``perf_counter_ns`` at which it ended, 0 for a token of ``None``."""
        if token is None:
            return 0
        ended = perf_counter_ns()
        code, outer, started = token
        if len(self.events) < self.capacity:
            self.events.append((code, started, ended))
        else:
            self.dropped += 1
        self.phase = outer
        try:
            words = self.words
            if words is not None:
                words[PHASE] = outer << _PHASE_SHIFT | ended + self._boottime_offset_ns
        except Exception:
            self._detach()
        self.self_time_ns += perf_counter_ns() - ended
        return ended

    def add(self, code: int, started: int, ended: int) -> None:
        """Append an interval that was found afterwards, or a mark with twice the same time."""
        if len(self.events) < self.capacity:
            self.events.append((code, started, ended))
        else:
            self.dropped += 1

    def mark(self, code: int) -> None:
        """Append a mark at the present time."""
        now = perf_counter_ns()
        self.add(code, now, now)

    def take(self) -> list[Event]:
        """Take the events gathered so far, in the order in which they ended. Called by the drain thread only."""
        # Slices, not a swap of the list: an append between the two lines stays in the buffer.
        taken = self.events[:]
        del self.events[: len(taken)]
        return taken

    def boottime(self, perf_ns: int) -> int:
        """Return the ``CLOCK_BOOTTIME`` of a ``perf_counter_ns``."""
        return perf_ns + self._boottime_offset_ns

    def synchronize_clock(self) -> None:
        """Follow a suspend of the machine, which moves one clock and not the other."""
        self._boottime_offset_ns = boottime_ns() - perf_counter_ns()

    def _detach(self) -> None:
        """Give the state file up; it is closed or its memory is gone."""
        self.words = None
        self.failures += 1
