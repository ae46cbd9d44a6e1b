"""The hot path: what runs on the training thread, and nothing else.

A hook calls ``Recorder.begin`` and ``Recorder.end`` around the call that it times. Both append or store and
return; the drain thread takes the events about once a second. Nothing here may raise, block or allocate without
bound. What it takes is counted in ``Recorder.self_time_ns``: one call in so many is timed and stands for the others.

It exists twice: here, and in ``_native.c`` for installations that could compile it or were given it compiled. Both do
the same, and the same tests hold both to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from threading import get_ident
from time import perf_counter_ns
from types import CellType
from typing import TYPE_CHECKING, Any

from laggard.shared import environment
from laggard.shared.phases import Phase
from laggard.shared.statefile import CODE_SHIFT, PHASE, PROGRESS, boottime_ns

if TYPE_CHECKING:
    from laggard._native import HotPath

_HotPath: type[HotPath] | None
try:
    _HotPath = import_module("laggard._native").HotPath
except ImportError:
    _HotPath = None

Event = tuple[int, int, int]
"""A code with the ``perf_counter_ns`` at which it began and ended. The code is a phase or one of the codes below."""

Token = tuple[int, int, int]
"""An open interval: its code, the phase around it, and the ``perf_counter_ns`` at which it began."""

# Marks: events without a length.
UPDATE = 16  # an optimizer changed the parameters, or a gradient scaler decided not to
FIRST_BATCH = 17  # the fetch that just ended was the first of its iterator, workers were started
STEP_BEGIN = 18  # `laggard.step()` was entered; from then on the steps are the ones that the script names
STEP_END = 19
RESUME = 20  # a checkpoint or the state of an optimizer was loaded
LOST = 21  # events are missing here
SKIPPED = 32  # a gradient scaler found gradients that are not finite, the update was left out
COMPILATION = 33  # the compiler began to work on code that is about to run
EXHAUSTED = 34  # the fetch that just ended found the end of its loader, not a batch

#: A step of an optimizer: its interval, and at its end an update.
OPTIMIZER_STEP = 48 | Phase.OPTIMIZER
#: A loader makes an iterator: it starts workers, or tells those that it has to begin again.
ITERATOR = 64 | Phase.DATA
#: A forward of a module in ``eval()`` mode. The low bits say evaluation, which is what the state file shows; the
#: partition decides whether it was one, or a teacher inside a training step.
EVALUATION_FORWARD = 16 | Phase.EVALUATION
#: A forward without gradients of a module in training mode: pseudo-labels, a rollout, an evaluation that kept the mode.
NO_GRAD_FORWARD = 64 | Phase.FORWARD
#: A pass of the autograd engine that accumulates no gradients: ``autograd.grad``, which an evaluation may use too.
GRADIENT = 64 | Phase.BACKWARD
_PHASE_BITS = 15
#: From this bit on a code says whose the interval is: the loader of a fetch, the optimizer of a step; 0 where unknown.
IDENTITY_SHIFT = 8
CODE_BITS = (1 << IDENTITY_SHIFT) - 1

#: Phases in which a module that is called is an outermost one: between the parts of a step, and in the closure of an
#: optimizer. A module that a fetch calls is data, and one that backward calls is recomputed.
MODULE_PHASES = (Phase.OTHER, Phase.OPTIMIZER)
#: Phases that swallow a fetch: that of a loader inside a data set, and what the script has named.
SWALLOWS_FETCH = (Phase.DATA, Phase.EVALUATION, Phase.CHECKPOINT)

#: Events kept before the process proves that it trains: an inference job never gets further.
EARLY_CAPACITY = 1024
#: Events kept between two drains: several seconds of steps below a millisecond, about 10 MB.
CAPACITY = 65536

#: One call in so many is timed: to read the clock is the dearest part of a call when caches are cold. Both ends of each
#: phase take their turn, unless the calls of a step are a multiple of it.
_TIMED_SHARE = 13


def _hot_path(events: list[Event]) -> dict[str, Callable[..., Any]]:  # noqa: C901, PLR0915 - one scope is the point of it
    """Return the functions of the hot path by name; ``Recorder`` describes them.

    Functions over variables of their own, not methods over attributes: with cold caches that is a fifth of their cost.
    """
    clock, append, count = perf_counter_ns, events.append, len
    # Constants too: a look-up in the module costs a cache line.
    identity, bits, phase_word, progress_word = get_ident, _PHASE_BITS, PHASE, PROGRESS
    forward = int(Phase.FORWARD)
    share = turn = _TIMED_SHARE
    phase: int = Phase.OTHER
    thread = 0
    enabled = True
    words: memoryview[int] | None = None
    device: Callable[[int], None] | None = None
    # For each phase what makes the state file's word of a time: the phase in the high bits, and the clocks' difference.
    bases: tuple[int, ...] = ()
    # The same while a step is trained, and from an evaluation's first forward to the next sign of training: what lies
    # outside of phases then may take as long as an evaluation.
    in_training: tuple[int, ...] = ()
    in_evaluation: tuple[int, ...] = (0,)
    capacity = EARLY_CAPACITY
    dropped = failures = self_time_ns = backwards = progress = offset = 0
    # Until a thread is known to train: the thread of each event, and the one that the phase is of. Then when it was.
    threads: list[int] = []
    holder = claimed = 0

    def begin(code: int) -> Token | None:
        nonlocal phase, progress, self_time_ns, turn, bases
        started = clock()
        if thread != identity() and not admitted():
            return None
        outer = phase
        phase = code & bits
        if code == forward:  # with gradients, so an evaluation is over
            bases = in_training
        progress += 1
        if words is not None:
            try:
                words[phase_word] = started + bases[phase]
                words[progress_word] = progress
            except Exception:
                detach()
        if device is not None:
            edge(started)
        turn -= 1
        if turn < 1:
            self_time_ns += (clock() - started) * share
            turn = share
        return code, outer, started

    def end(token: Token | None) -> int:
        nonlocal phase, dropped, self_time_ns, turn
        if token is None:
            return 0
        ended = clock()
        code, outer, started = token
        if started < claimed and thread != identity():
            return 0  # on a thread that does not train, as it turned out since
        if device is not None:  # before the event is there to be taken
            edge(ended)
        if count(events) < capacity:
            append((code, started, ended))
            if not thread:
                threads.append(identity())
        else:
            dropped += 1
        phase = outer
        if words is not None:
            try:
                words[phase_word] = ended + bases[outer]
            except Exception:
                detach()
        turn -= 1
        if turn < 1:
            self_time_ns += (clock() - ended) * share
            turn = share
        return ended

    def add(code: int, started: int, ended: int) -> None:
        nonlocal dropped
        if count(events) < capacity:
            append((code, started, ended))
            if not thread:
                threads.append(identity())
        else:
            dropped += 1

    def evaluate() -> Token | None:
        nonlocal bases
        token = begin(EVALUATION_FORWARD)
        if token is not None:
            bases = in_evaluation
        return token

    def trains() -> bool:
        nonlocal backwards, bases
        backwards += 1
        bases = in_training
        return claim()

    def claim() -> bool:
        nonlocal thread, phase, claimed
        me, before = identity(), thread
        if before == me or not enabled:
            return False
        thread, claimed = me, clock()
        if (before or holder) != me:
            phase = 0
        if not before:
            events[:] = [event for event, owner in zip(events, threads, strict=False) if owner == me]
            threads.clear()
        return not before

    def resume(at: int) -> None:
        nonlocal bases
        if bases is in_evaluation:
            bases = in_training
            if words is not None:
                try:
                    words[phase_word] = at + bases[phase]
                except Exception:
                    detach()

    def synchronize(difference: int) -> None:
        nonlocal offset, bases, in_training, in_evaluation
        evaluating = bases is in_evaluation
        offset = difference
        in_training = tuple((number << CODE_SHIFT) + difference for number in range(bits + 1))
        in_evaluation = (in_training[Phase.EVALUATION], *in_training[1:])
        bases = in_evaluation if evaluating else in_training

    def drain() -> list[Event]:
        # Slices, not a swap of the list: an append between the two lines stays in the buffer.
        taken = events[:]
        del events[: count(taken)]
        del threads[: count(taken)]
        return taken

    def admitted() -> bool:
        # Any thread, until one is known to train; and none when the recorder is off, since no thread is number -1.
        nonlocal holder
        if enabled and not thread:
            holder = identity()
            return True
        return False

    def edge(at: int) -> None:
        nonlocal device, failures
        try:
            if device is not None:
                device(at)
        except Exception:
            device = None
            failures += 1

    def detach() -> None:
        nonlocal words, failures
        words = None
        failures += 1

    functions = (begin, end, add, evaluate, trains, claim, resume, synchronize, drain, edge, admitted, detach)
    return {function.__name__: function for function in functions}


class _PythonHotPath:
    """The hot path in Python: its functions, and the variables that they share, as attributes."""

    def __init__(self) -> None:
        events: list[Event] = []
        functions = _hot_path(events)
        cells: dict[str, CellType] = {}
        for function in functions.values():
            cells.update(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        vars(self).update(functions, _cells=cells, _events=events)

    def __getattr__(self, name: str) -> Any:
        return vars(self)["_cells"][name].cell_contents

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["_cells"][name].cell_contents = value

    @property
    def waiting(self) -> int:
        """Events that no drain has taken yet."""
        return len(vars(self)["_events"])


def identity_of(thing: object) -> int:
    """Return the bits of a code that say whose the interval is: its place in memory, its own while it lives."""
    return (id(thing) >> 4 & 0xFFFFFF) << IDENTITY_SHIFT


def _mask(phases: Iterable[Phase]) -> int:
    return sum(1 << phase for phase in phases)


def _variable(name: str, description: str) -> Any:
    """Return a property that reads and writes a variable of the hot path."""

    def read(recorder: Recorder) -> Any:
        return getattr(recorder.path, name)

    def write(recorder: Recorder, value: Any) -> None:
        setattr(recorder.path, name, value)

    return property(read, write, doc=description)


class Recorder:
    """Bounded buffer of phase intervals of the training thread, mirrored into the rank's state file.

    Each read and write is a single operation; no lock is taken on the hot path.
    """

    __slots__ = (
        "add", "begin", "claim", "drain", "edge", "end", "evaluate", "native", "path", "resume", "trains"
    )  # fmt: skip

    begin: Callable[[int], Token | None]
    """Enter a phase. The result goes to ``end``; ``None`` on a thread that does not train."""
    end: Callable[[Token | None], int]
    """Leave a phase; return the ``perf_counter_ns`` at which it ended, 0 for a token of ``None``."""
    add: Callable[[int, int, int], None]
    """Append an interval that was found afterwards, or a mark with twice the same time."""
    edge: Callable[[int], None]
    """Note an edge that no phase has on the device's clock, if that is used."""
    evaluate: Callable[[], Token | None]
    """Enter a forward in ``eval()`` mode, as ``begin`` does; until the next sign of training the state file says
    evaluation."""
    trains: Callable[[], bool]
    """Take note that this thread begins a backward pass, and so trains; return whether none was known to train."""
    claim: Callable[[], bool]
    """Take note that this thread trains, and forget what others did; return whether none was known to train."""
    resume: Callable[[int], None]
    """Take note of a sign of training at a ``perf_counter_ns``: it ends an evaluation."""
    drain: Callable[[], list[Event]]
    """Take the events gathered so far, in the order in which they ended. Called by the drain thread only."""

    phase: int = _variable("phase", "The phase that the training thread is in.")
    words: memoryview[int] | None = _variable("words", "Live words of the state file, while there is one.")
    device: Callable[[int], None] | None = _variable("device", "Notes an edge on the device's clock, if that is used.")
    capacity: int = _variable("capacity", "Events kept between two drains.")
    dropped: int = _variable("dropped", "Events that found no room.")
    backwards: int = _variable("backwards", "Backward passes begun.")
    progress: int = _variable("progress", "Signs of progress of any kind.")
    failures: int = _variable("failures", "How often the state file was given up.")
    self_time_ns: int = _variable("self_time_ns", "Time that the hooks took on training threads, estimated.")

    def __init__(self) -> None:
        #: The hot path if it is native: it also makes wrappers that call it without a frame of Python's.
        self.native: HotPath | None = None
        if _HotPath is not None and environment.hot_path() == "native":
            self.native = _HotPath(
                share=_TIMED_SHARE,
                phase_bits=_PHASE_BITS,
                code_shift=CODE_SHIFT,
                phase_word=PHASE,
                progress_word=PROGRESS,
                forward=Phase.FORWARD,
                evaluation=Phase.EVALUATION,
                identity_shift=IDENTITY_SHIFT,
                module_phases=_mask(MODULE_PHASES),
                swallows_fetch=_mask(SWALLOWS_FETCH),
                capacity=EARLY_CAPACITY,
            )
        self.path: Any = self.native or _PythonHotPath()
        for name in ("begin", "end", "add", "edge", "evaluate", "trains", "claim", "resume", "drain"):
            setattr(self, name, getattr(self.path, name))
        self.synchronize_clock()

    @property
    def thread(self) -> int:
        """Identity of the thread that trains, 0 until its first backward; no other thread is recorded then."""
        return self.path.thread

    @thread.setter
    def thread(self, identity: int) -> None:
        if self.enabled:
            self.path.thread = identity

    def is_mine(self) -> bool:
        """Return whether this thread is recorded: the one that trains, and any until one is known to."""
        return self.thread == get_ident() or (self.enabled and not self.thread)

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self.path.enabled

    @property
    def waiting(self) -> int:
        """Events that no drain has taken yet."""
        return self.path.waiting

    def disable(self) -> None:
        """Record nothing more."""
        self.thread = -1
        self.path.enabled = False

    def mark(self, code: int) -> None:
        """Append a mark at the present time."""
        now = perf_counter_ns()
        self.edge(now)
        self.add(code, now, now)

    def boottime(self, perf_ns: int) -> int:
        """Return the ``CLOCK_BOOTTIME`` of a ``perf_counter_ns``."""
        return perf_ns + self.path.offset

    def synchronize_clock(self) -> None:
        """Follow a suspend of the machine, which moves one clock and not the other."""
        self.path.synchronize(boottime_ns() - perf_counter_ns())
