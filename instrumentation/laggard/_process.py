"""The instrumentation of one process: its hooks, and from the first proof of training on its drain.

Hooks are in place from :meth:`Process.start` on, but nothing is opened, served or written before the process proves
that it trains: by a process group, a backward pass or an optimizer step. So launchers, data workers and inference
jobs that inherit the environment stay silent. In a process that a rank has started a group is no proof: it may save the
rank's checkpoints, or serve what it trains.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from laggard import _identity, _imports, _messages, _providers, _signals
from laggard._drain import Drain
from laggard._exit import FLUSH_SECONDS, ExitHandling
from laggard._flight_recorder import HangDump
from laggard._hooks import HOOKS, Hook, Traced
from laggard._hooks.exposure import Exposure
from laggard._hot_path import CAPACITY, EARLY_CAPACITY
from laggard._log import Log
from laggard._part import Part
from laggard._profile import Profiler
from laggard._recorder import Recorder
from laggard._requests import ControlFile
from laggard._summary import Summary, seen_in, summarize
from laggard._trace import TraceDump
from laggard._wakeup import Wakeup
from laggard.shared import environment
from laggard.shared.peers import PeerGroup
from laggard.shared.statefile import Ending

_logger = logging.getLogger(__name__)
_messages.begin_with_our_name()

#: A drain takes milliseconds; a thread that holds the interpreter makes it wait.
_SUMMARY_SECONDS = 0.5
#: Slow waits kept for the traces of the last steps.
_SLOW_COLLECTIVES = 1024


class Process:
    """What :func:`laggard.instrument` makes and :func:`laggard.uninstrument` ends."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.traced = Traced()
        self.backward_observers: list[Callable[[int, int], None]] = []
        self.iterator_observers: list[Callable[[Any], None]] = []
        self.compilation_observers: list[Callable[[bool], None]] = []
        #: Told before and after torch's profiler looks which code calls a module: it keeps what it finds for good.
        self.profiler_observers: list[Callable[[bool], None]] = []
        self.exposure = Exposure()
        self.peers = PeerGroup()
        self.at_step: Callable[[int], None] | None = None
        self.slow_collectives: deque[tuple[str, int, int]] = deque(maxlen=_SLOW_COLLECTIVES)
        self.log = Log(self)
        self.trace = TraceDump(self)
        self.profiler = Profiler(self)
        #: What is no patch of torch.
        self._others: tuple[Part, ...] = (
            ControlFile(self, self.trace, self.profiler),
            self.log,
            self.trace,
            self.profiler,
            HangDump(self),
        )
        #: Hooks and others, in the order in which they are told.
        self._parts: list[Part] = []
        self._lock = threading.Lock()
        self._drain: Drain | None = None
        self._wakeup: Wakeup | None = None
        self._exit: ExitHandling | None = None
        #: Training need not be proved any more, or must never be reported from this process.
        self._settled = False

    def start(self) -> None:
        """Install the hooks; each waits for the torch module that it patches. Imports no torch."""
        disabled = environment.names(environment.LAGGARD_DISABLED_HOOKS)
        known = [part.name for part in (*HOOKS, *self._others)]
        unknown = disabled.difference(known, (kind.former_name for kind in HOOKS))
        if unknown:
            _logger.warning(
                "%s=%s: no such hook; known are %s",
                environment.LAGGARD_DISABLED_HOOKS,
                ",".join(sorted(unknown)),
                ", ".join(known),
            )
        parts = (*(kind(self) for kind in HOOKS), *self._others)
        self._parts = [part for part in parts if disabled.isdisjoint((part.name, part.former_name))]
        for part in self._parts:
            part.installed = True
            for module, patch in part.targets().items() if isinstance(part, Hook) else ():
                _imports.when_imported(module, part.guarded(patch))

    def stop(self) -> None:
        """Take every hook out, report what is left, and remove all that was opened."""
        global _ended  # noqa: PLW0603 - the last steps outlive what kept them
        self._settled = True
        _imports.forget()
        signals: dict[str, bool] = {}
        with contextlib.suppress(Exception):  # a summary lacks them then
            signals = self._available()
        reporting = (self.log, self.trace)  # they patch nothing, and hold what the last drain reports
        for part in reversed(self._parts):
            if part not in reporting:
                part.uninstall()
        self.recorder.disable()
        if self._drain is not None:
            self._finish(Ending(), FLUSH_SECONDS, flush=False)
            self._drain.close()
            with contextlib.suppress(Exception):  # nothing else depends on it
                _ended = self._summary(signals)
        for part in reporting:
            part.uninstall()
        if self._exit is not None:
            self._exit.remove()
        if self._wakeup is not None:
            self._wakeup.forget()
        _providers.drop_own()

    def training_evidence(self, rank: int | None = None, world_size: int | None = None) -> None:
        """Start reporting, unless that has happened."""
        if self._settled:
            return
        with self._lock:
            if self._settled:
                return
            self._settled = True
            try:
                self._start_drain(rank, world_size)
            except Exception:
                _logger.exception("laggard cannot report from this process; training goes on")

    def group_evidence(self, rank: int | None, world_size: int | None) -> None:
        """Start reporting, unless a rank has started this process for other work than its own."""
        try:
            if self._settled or _identity.helps_a_rank(rank, world_size):
                return
        except Exception:
            _logger.exception("laggard cannot tell whether a rank has started this process; it is taken for one itself")
        self.training_evidence(rank, world_size)

    def training_ended(self) -> None:
        """Report the rank as finished, until another step ends."""
        if self._drain is not None:
            self._drain.training_ended()

    def training_aborted(self) -> None:
        """Note that somebody has ended the rank's training, unless another step ends: as Ray, before it kills one."""
        if self._drain is not None:
            self._drain.training_aborted()

    def training_failed(self, error: BaseException) -> None:
        """Report the rank as ended by an exception. What the process does after it is reported no more."""
        if self._exit is not None and self._drain is not None:
            self._exit.fail(error)
            self._drain.abandon()
            self.recorder.disable()

    def not_training(self) -> None:
        """Fall silent for good: this process is a data worker."""
        self._settled = True
        self.recorder.disable()

    def summary(self) -> Summary:
        """Return the last steps in figures. Waits for what was recorded until now, for half a second at most."""
        if self._drain is not None:
            self._drain.catch_up(_SUMMARY_SECONDS)
        return self._summary(self._available())

    def _available(self) -> dict[str, bool]:
        return _signals.available(self._parts, seen_in(self.trace.steps()))

    def _summary(self, signals: dict[str, bool]) -> Summary:
        if self._drain is None:
            return Summary(note="no step has ended yet")
        if self.trace not in self._parts:
            return Summary(note="the hook trace is off, which keeps the last steps")
        return summarize(self.trace.steps(), self._drain.identity, self._drain.steps, signals)

    def hear(self, number: int) -> bool:
        """Have the parts woken by a signal that has its default action; return whether they are."""
        return self._wakeup is not None and self._wakeup.hear(number)

    def part_failed(self, part: Part, error: Exception) -> None:
        """Take a part out of service; the others go on."""
        try:
            part.uninstall()
        except Exception:
            _logger.exception("hook %s could not be removed", part.name)
        _logger.warning("hook %s failed and is off, training goes on: %r", part.name, error)
        if self._drain is not None:
            self._drain.part_failed()

    def forget_parent(self) -> None:
        """Start over in a forked child: it may be a rank of its own, a data worker or something else."""
        if self._drain is not None:
            _providers.silence_parent()
            self._drain.abandon()
        if self._exit is not None:
            self._exit.remove()
        if self._wakeup is not None:
            self._wakeup.forget()
        recorder = self.recorder
        recorder.drain()
        recorder.thread = 0
        recorder.contested = False
        recorder.capacity = EARLY_CAPACITY
        self._lock = threading.Lock()
        self._drain = self._wakeup = self._exit = None
        for part in self._parts:
            part.guarded(part.forked)()
        self._settled = not recorder.enabled

    def _start_drain(self, rank: int | None, world_size: int | None) -> None:
        self.recorder.capacity = CAPACITY
        self._wakeup = Wakeup()
        self._exit = ExitHandling(self._finish)
        identity = _identity.from_environment(rank, world_size)
        self._drain = Drain(
            self.recorder,
            self._parts,
            identity,
            self._wakeup,
            self._exit,
            peers=self.peers,
            slow_collectives=self.slow_collectives,
        )
        self._exit.install(self._wakeup, self._drain.state_file)
        for part in self._parts:
            part.guarded(part.training_began)()

    def _finish(self, ending: Ending, seconds: float, *, flush: bool) -> None:
        self.profiler.finish(export=not ending.failed)
        if self._drain is not None:
            self._drain.stop(ending, seconds, flush=flush)


_current: Process | None = None
#: The last steps of what :func:`uninstrument` ended.
_ended: Summary | None = None


def current() -> Process | None:
    """Return the instrumentation of this process, if there is one."""
    return _current


def instrument() -> None:
    """Instrument this process; never raises. A second call, as of a script under ``laggard run``, changes nothing."""
    global _current  # noqa: PLW0603 - one instrumentation a process is what the hooks allow
    if _current is not None:
        return
    try:
        _current = Process()
        _current.start()
    except Exception as error:
        # Tools rewrite what is imported after them, ours too: checkers of types do.
        _logger.warning("this process cannot be instrumented, training goes on: %r", error)


def uninstrument() -> None:
    """Undo :func:`instrument`. Without one before, nothing changes and a warning says so."""
    global _current  # noqa: PLW0603 - as above
    if _current is None:
        _logger.warning("this process is not instrumented")
        return
    _current.stop()
    _current = None


def summary() -> Summary:
    """Return the last steps in figures: of this process, or of what :func:`uninstrument` ended."""
    if _current is not None:
        return _current.summary()
    return _ended or Summary(note="this process is not instrumented; call laggard.instrument() first")


def _after_fork() -> None:
    if _current is not None:
        try:
            _current.forget_parent()
        except Exception:
            _logger.exception("a forked child could not forget its parent's instrumentation")


os.register_at_fork(after_in_child=_after_fork)
