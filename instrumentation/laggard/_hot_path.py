"""The hot path in Python: what runs on the training thread where nothing is native, and nothing else.

A hook calls ``begin`` and ``end`` around the call that it times, or has a wrapper made that does. Both append or store
and return; the drain thread takes the events about once a second. Nothing here may raise, block or allocate without
bound. What it takes is counted in ``self_time_ns``: one call in some is timed and stands for the others.

``_native.c`` is the same in C, for installations that could compile it or were given it compiled: the same attributes,
methods and wrappers, which the same tests hold both to. ``_native.pyi`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from threading import get_ident, local
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from laggard._events import (
    EVALUATION_FORWARD,
    IDENTITY_SHIFT,
    MODULE_PHASES,
    PHASE_BITS,
    SWALLOWS_FETCH,
    Event,
    Token,
    identity_of,
)
from laggard.shared.phases import Phase
from laggard.shared.statefile import CODE_SHIFT, PHASE, PROGRESS

if TYPE_CHECKING:
    from types import ModuleType

    from laggard._hooks.torch_compile_state import Traced

#: Where an iterator keeps the number of its loader.
LOADER_ATTRIBUTE = "_laggard_loader"

#: Events kept before the process proves that it trains: an inference job never gets further.
EARLY_CAPACITY = 1024
#: Events kept between two drains: several seconds of steps below a millisecond, about 10 MB.
CAPACITY = 65536

#: One call in this many is timed: with cold caches the clock is the dearest part of a call. Both ends of each phase
#: take their turn, unless the calls of a step are a multiple of it.
TIMED_SHARE = 13

_OTHER, _FORWARD, _EVALUATION = int(Phase.OTHER), int(Phase.FORWARD), int(Phase.EVALUATION)


class Timed:
    """Runs one function in the place of another. Pickled by value, as a class of a script is, it is that other."""

    def __init__(self, call: Callable[..., Any], run: Callable[..., Any]) -> None:
        self._call = call
        self._run = run

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getitem, ((self._call,), 0)


class HotPath:
    """A bounded buffer of events of the thread that trains, and what writes them."""

    def __init__(self) -> None:
        #: Identity of the thread that trains, 0 until one is known to: then any is recorded. -1: none is.
        self.thread = 0
        self.enabled = True
        self.phase: int = Phase.OTHER
        self.words: memoryview[int] | None = None
        self.device: Callable[[int], None] | None = None
        self.capacity = EARLY_CAPACITY
        #: What makes a ``CLOCK_BOOTTIME`` of a ``perf_counter_ns``.
        self.offset = 0
        self.dropped = self.failures = self.self_time_ns = self.backwards = self.progress = 0
        self._events: list[Event] = []
        #: From an evaluation's first forward to the next sign of training: what lies outside of phases then may take
        #: as long as an evaluation.
        self._evaluating = False
        #: An outermost module runs.
        self._in_forward = False
        self._turn = TIMED_SHARE
        #: Until a thread is known to train: the thread of each event, and the one that the phase is of.
        self._threads: list[int] = []
        self._holder = 0
        #: What each thread that has trained was recorded by.
        self._trained = local()
        #: Two threads train at once.
        self.contested = False
        #: Who claimed last without being the thread that trains, and how far that one had come by then.
        self._overtaken = 0, 0

    @property
    def waiting(self) -> int:
        """Events that no drain has taken yet."""
        return len(self._events)

    def begin(self, code: int) -> Token | None:
        """Enter a phase: see :class:`laggard._recorder.Recorder`, as for the methods below."""
        started = perf_counter_ns()
        if not self._begins():
            return None
        if not self.thread:
            self._holder = get_ident()
        outer, self.phase = self.phase, code & PHASE_BITS
        if code == _FORWARD:  # with gradients, so an evaluation is over
            self._evaluating = False
        self.progress += 1
        self._show(started)
        if self.device is not None:
            self.edge(started)
        self._count(started)
        return code, outer, started

    def end(self, token: Token | None) -> int:
        """Leave a phase."""
        if token is None:
            return 0
        ended = perf_counter_ns()
        if self.enabled and not self._is_mine():
            return 0  # on a thread that does not train, as it turned out since
        if self.device is not None:  # before the event is there to be taken
            self.edge(ended)
        code, self.phase, started = token
        self.add(code, started, ended)
        self._show(ended)
        self._count(ended)
        return ended

    def add(self, code: int, started: int, ended: int) -> None:
        """Append an event."""
        if len(self._events) >= self.capacity:
            self.dropped += 1
            return
        self._events.append((code, started, ended))
        if not self.thread:
            self._threads.append(get_ident())

    def evaluate(self) -> Token | None:
        """Enter a forward in ``eval()`` mode."""
        token = self.begin(EVALUATION_FORWARD)
        if token is not None:
            self._evaluating = True
        return token

    def trains(self) -> bool:
        """Begin a backward pass."""
        self.backwards += 1
        self._evaluating = False
        before = self.thread
        first = self.claim()
        if before not in (0, self.thread):
            # It takes over from another thread. Its own forward was before that, and begins the step.
            now = perf_counter_ns()
            self.add(_FORWARD, now, now)
        return first

    def claim(self) -> bool:
        """Be the thread that trains."""
        me, before = get_ident(), self.thread
        if before == me or not self.enabled:
            return False
        if before and (self.contested or self.phase != _OTHER):
            # Both train at once, unless that one does nothing from one claim to the next.
            self.contested = True
            last, self._overtaken = self._overtaken, (me, self.progress)
            if last != self._overtaken:
                return False
        self.thread = me
        self._trained.here = True
        if (before or self._holder) != me:
            self.phase, self._in_forward = _OTHER, False
        if before:
            return False
        self._events[:] = [event for event, owner in zip(self._events, self._threads, strict=False) if owner == me]
        self._threads.clear()
        return True

    def resume(self, at: int) -> None:
        """Take note of a sign of training."""
        if self._evaluating:
            self._evaluating = False
            self._show(at)

    def synchronize(self, offset: int) -> None:
        """Follow the clocks."""
        self.offset = offset

    def drain(self) -> list[Event]:
        """Take the events."""
        # Slices, not a swap of the list: an append between the two lines stays in the buffer.
        taken = self._events[:]
        del self._events[: len(taken)]
        del self._threads[: len(taken)]
        return taken

    def edge(self, at: int) -> None:
        """Note an edge on the device's clock, if that is used."""
        try:
            if self.device is not None:
                self.device(at)
        except Exception:
            self.device = None
            self.failures += 1

    def step_begins(self, running: list[Any], optimizer: Any, code: int) -> bool:
        """Begin an optimizer's step that is the only one. False where it is not: then nothing was done."""
        if running or not self.thread:
            return False
        token = self.begin(code | identity_of(optimizer))
        if token is None:
            return False
        running.append((id(optimizer), token, 0))
        return True

    def step_ends(self, running: list[Any], optimizer: Any) -> bool:
        """End it. False where it is not the only one: then nothing was done."""
        if len(running) != 1 or running[0][0] != id(optimizer) or running[0][1] is None:
            return False
        self.end(running.pop()[1])
        return True

    def timed_fetch(
        self, call: Callable[..., Any], code: int, first: int, exhausted: int, adopt: Callable[[Any], int]
    ) -> Callable[..., Any]:
        """Return a ``__next__`` that is timed, with marks at a loader's first batch and at its end.

        ``adopt`` gives a new iterator the number of its loader.
        """

        def timed(iterator: Any) -> Any:
            if not self._begins() or self.phase in SWALLOWS_FETCH:
                return call(iterator)
            mark = first if getattr(iterator, "_num_yielded", 1) == 0 else 0
            loader = getattr(iterator, LOADER_ATTRIBUTE, None)
            if loader is None:
                loader = adopt(iterator)
            token = self.begin(code | loader << IDENTITY_SHIFT)
            try:
                return call(iterator)
            except StopIteration:
                mark = exhausted
                raise
            finally:
                ended = self.end(token)
                if mark and ended:
                    self.add(mark, ended, ended)

        return timed

    def timed_forward(  # noqa: PLR0917 - the native one has no names for them
        self,
        call: Callable[..., Any],
        code: int,
        evaluation: int,  # noqa: ARG002 - what `evaluate` begins
        no_grad: int,
        compiler: ModuleType,
        traced: Traced,
        graph: type,
        is_grad_enabled: Callable[[], bool],
        found: Callable[[Any], None] | None,
        base: type | None,
        evaluates: Callable[[Any], bool],
        trained: set[type],
    ) -> Callable[..., Any]:
        """Return what calls an outermost module with a tuple and a dictionary, and times it.

        ``found`` gets each such module, ``base`` is the class whose ``__call__`` of that moment is called, and
        ``evaluates`` says whether a module without gradients evaluates. Of the classes that are ``trained`` in training
        mode a module in ``eval()`` mode evaluates with gradients too.
        """

        def timed(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # torch.fx puts another one there while it traces, and is left alone then.
            current: Any = call if base is None else base.__call__
            if (
                current is not call
                or self._in_forward
                or not self._begins()
                or self.phase not in MODULE_PHASES
                or compiler._is_compiling_flag  # noqa: SLF001 - the public way is a call
                or (traced.running and isinstance(module, graph))
            ):
                return current(module, *args, **kwargs)
            if is_grad_enabled() and (getattr(module, "training", False) or module.__class__ not in trained):
                token = self.begin(code)
            else:
                token = self.evaluate() if evaluates(module) else self.begin(no_grad)
            self._in_forward = True
            try:
                return call(module, *args, **kwargs)
            finally:
                self._in_forward = False
                self.end(token)
                if found is not None:
                    found(module)

        return Timed(call, timed)

    def timed_backward(
        self,
        call: Callable[..., Any],
        code: int,
        gradient: int,
        evidence: Callable[[], None],
        observers: list[Callable[[int, int], None]],
    ) -> Callable[..., Any]:
        """Return a ``run_backward`` of the engine that is timed.

        ``evidence`` is called where this is the first sign of training, ``observers`` get begin and end of each pass.
        """
        running = False

        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal running
            if running:  # a backward inside a backward is part of the outer one
                return call(*args, **kwargs)
            # `autograd.grad` may be part of a model, also where nothing is trained.
            accumulates = kwargs.get("accumulate_grad", False)
            if accumulates and self.trains():
                evidence()
            token = self.begin(code if accumulates else gradient)
            if token is None:
                return call(*args, **kwargs)
            running = True
            try:
                return call(*args, **kwargs)
            finally:
                running = False
                ended = self.end(token)
                if accumulates:
                    for observer in observers:
                        observer(token[2], ended)

        return timed

    def around(
        self, call: Callable[..., Any], before: Callable[..., Any], after: Callable[[Any, bool, Any], object]
    ) -> Callable[..., Any]:
        """Return what calls ``before``, ``call`` and ``after``: see :func:`laggard._hooks.base.around`."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            state = before(*args, **kwargs)
            if state is None:
                return call(*args, **kwargs)
            succeeded, result = False, None
            try:
                result = call(*args, **kwargs)
                succeeded = True
            finally:
                after(state, succeeded, result)
            return result

        return wrapper

    def _begins(self) -> bool:
        """Return whether this thread is recorded from here on.

        One that has trained before goes on where the other stands between its phases: threads of a pool, or learners
        with a lock, train in turns.
        """
        if self._is_mine():
            return True
        if self.phase != _OTHER or self.contested or not self.enabled or not hasattr(self._trained, "here"):
            return False
        self.thread, self._in_forward = get_ident(), False
        return True

    def _is_mine(self) -> bool:
        return self.thread == get_ident() if self.thread else self.enabled

    def _show(self, at: int) -> None:
        """Write where the rank stands into the state file, if there is one."""
        words = self.words
        if words is None:
            return
        phase = _EVALUATION if self._evaluating and self.phase == _OTHER else self.phase
        try:
            words[PHASE] = (phase << CODE_SHIFT) + at + self.offset
            words[PROGRESS] = self.progress
        except Exception:  # its memory has gone away
            self.words = None
            self.failures += 1

    def _count(self, since: int) -> None:
        self._turn -= 1
        if self._turn < 1:
            self.self_time_ns += (perf_counter_ns() - since) * TIMED_SHARE
            self._turn = TIMED_SHARE
