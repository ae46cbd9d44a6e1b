"""What hooks and drain know of the hot path, be it native (``_native.c``) or in Python (``_hot_path.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from laggard import _events
from laggard._clocks import boottime_ahead_ns
from laggard._events import IDENTITY_SHIFT, MODULE_PHASES, PHASE_BITS, SWALLOWS_FETCH, Event, Token
from laggard._hot_path import EARLY_CAPACITY, TIMED_SHARE, HotPath
from laggard.shared import environment
from laggard.shared.phases import Phase
from laggard.shared.statefile import CODE_SHIFT, PHASE, PROGRESS

if TYPE_CHECKING:
    from laggard._native import HotPath as NativeHotPath

_NativeHotPath: type[NativeHotPath] | None
try:
    _NativeHotPath = import_module("laggard._native").HotPath
except ImportError:
    _NativeHotPath = None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """Return a code of :mod:`laggard._events`, which were here."""
        return getattr(_events, name)


def _mask(phases: Iterable[Phase]) -> int:
    return sum(1 << phase for phase in phases)


def _variable(name: str, description: str) -> Any:
    """Return a property that reads and writes a variable of the hot path. Hooks read twenty in a step."""

    def write(recorder: Recorder, value: Any) -> None:
        setattr(recorder.path, name, value)

    # Without a frame of Python's, which takes longer than the rest.
    return property(attrgetter(f"path.{name}"), write, doc=description)


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
    contested: bool = _variable("contested", "Two threads train at once, and one of them is recorded.")
    self_time_ns: int = _variable("self_time_ns", "Time that the hooks took on training threads, estimated.")

    def __init__(self) -> None:
        #: The hot path if it is native: its wrappers have no frame of Python's.
        self.native: NativeHotPath | None = None
        if _NativeHotPath is not None and environment.hot_path() == "native":
            self.native = _NativeHotPath(
                share=TIMED_SHARE,
                phase_bits=PHASE_BITS,
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
        #: What runs on the training thread, and makes wrappers that do.
        self.path: NativeHotPath | HotPath = self.native or HotPath()
        for name in ("begin", "end", "add", "edge", "evaluate", "trains", "claim", "resume", "drain"):
            setattr(self, name, getattr(self.path, name))
        self.synchronize_clock()

    @property
    def thread(self) -> int:
        """Identity of the thread that trains, 0 until its first backward; others are recorded then in turns, or not."""
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
        self.path.synchronize(boottime_ahead_ns())
