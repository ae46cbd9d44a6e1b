"""What every hook shares: patches that can be undone, and a failure that stays inside the hook."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol

from laggard._hooks.torch_compile_state import Traced

if TYPE_CHECKING:
    from laggard._hooks.exposure import Exposure
    from laggard._partition import Step
    from laggard._recorder import Recorder, Token
    from laggard._report import Report
    from laggard.peers import PeerGroup

_Arguments = ParamSpec("_Arguments")

_MISSING = object()


_Patch = tuple[Any, str, Any, Any]
"""Owner, attribute, the owner's own entry before, and what stands there now."""


class HookHost(Protocol):
    """What a hook may ask of the process that it runs in."""

    recorder: Recorder
    #: Called on the training thread with UPDATE or STEP_END when a step has ended, while somebody waits for that.
    at_step: Callable[[int], None] | None
    #: The newest waits for a collective of a millisecond or more: operation and the ``perf_counter_ns`` of its start
    #: and end.
    slow_collectives: deque[tuple[str, int, int]]
    traced: Traced
    #: Called at the end of each backward pass with the ``perf_counter_ns`` of its start and end. Must not raise.
    backward_observers: list[Callable[[int, int], None]]
    #: Called on the training thread with each new iterator of a DataLoader, before its first batch. Must not raise.
    iterator_observers: list[Callable[[Any], None]]
    #: Called with True when the compiler begins to look at code, with False when it has. Must not raise.
    compilation_observers: list[Callable[[bool], None]]
    #: Whether exposed communication is seen; what times a wait counts it there.
    exposure: Exposure
    #: What is known of the ranks that do the same work.
    peers: PeerGroup

    def training_evidence(self, rank: int | None = None, world_size: int | None = None) -> None:
        """Say that this process trains: reporting starts. Cheap once it has started; never raises."""

    def training_ended(self) -> None:
        """Say that the rank has ended its training, though not its process. Never raises."""

    def not_training(self) -> None:
        """Say that this process is a data worker: nothing is recorded or exported from here on. Never raises."""

    def hear(self, number: int) -> bool:
        """Have :meth:`Hook.woken` told of a signal that has its default action; return whether it is. Never raises."""
        ...

    def hook_failed(self, hook: Hook, error: Exception) -> None:
        """Take a hook out of service: it is uninstalled, logged once and counted. Never raises."""


class Hook:
    """A set of patches with one purpose.

    A subclass names what it patches in :meth:`targets`: for each torch module a function that is called with the
    module once it is imported. Patches are made with :meth:`replace` and undone together.
    """

    name: ClassVar[str]
    #: The signal of :data:`laggard.conventions.SIGNALS` that is gone when the hook fails, if it has one.
    signal: ClassVar[str] = ""
    #: While telemetry costs more than its budget, the hook reports in one of so many drains.
    resting_share: ClassVar[int] = 1

    def __init__(self, host: HookHost) -> None:
        self.host = host
        self.recorder = host.recorder
        self.installed = False
        self._resting = False
        self._drains = 0
        self._patches: list[_Patch] = []
        self._suspended: list[_Patch] = []
        self._observed: list[tuple[list[Any], Any]] = []

    @property
    def available(self) -> bool:
        """Whether the hook's signal can be trusted now."""
        return self.installed

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Return the torch modules that the hook waits for, each with what is done then; none if it only looks on."""
        return {}

    def report(self, report: Report) -> None:
        """Report what the hook gathered since the last call. Called by the drain thread."""

    def steps_ended(self, steps: list[Step]) -> None:
        """Take the steps that ended since the last call. Called by the drain thread."""

    def step_attributes(self, step: Step) -> Mapping[str, float]:  # noqa: ARG002 - for those that know something
        """Return what the hook knows of a step that is being traced. Called by the drain thread. Must not raise."""
        return {}

    def state_file_opened(self, words: memoryview[int]) -> None:
        """Write what the hook keeps in the state file's live words, now that there is one."""

    def training_began(self) -> None:
        """Begin what only a rank does. On the thread that proved that this process trains."""

    def woken(self, signals: bytes) -> None:
        """Take the numbers of signals that arrived. Called by the drain thread, also while the main thread is stuck."""

    def forked(self) -> None:
        """Forget what the parent gathered. In a forked child, which destroys nothing that belongs to the parent."""

    def rest(self) -> None:
        """Give up what is optional, since telemetry costs more than its budget. Called by the drain thread."""
        self._resting = True

    def resume(self) -> None:
        """End the rest. Called by the drain thread."""
        self._resting = False

    def due(self) -> bool:
        """Return whether the hook reports in this drain; each drain asks once."""
        self._drains += 1
        return not self._resting or self._drains % self.resting_share == 0

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what ``make`` makes of it.

        The owner's own entry is kept, not what ``getattr`` binds: a method of a class that C++ made loses its
        ``self`` when the bound form is put back.
        """
        own = _own_entry(owner, name)
        original = getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._patches.append((owner, name, own, replacement))

    def restore(self, owner: Any, name: str) -> None:
        """Undo the newest patch of one attribute, if there is one."""
        for index in reversed(range(len(self._patches))):
            if self._patches[index][:2] == (owner, name):
                _undo(self._patches.pop(index))
                return

    def observe(self, observers: list[Callable[_Arguments, None]], observer: Callable[_Arguments, None]) -> None:
        """Add an observer to a list of the host's, once, until the hook is uninstalled."""
        if observer not in observers:
            observers.append(observer)
            self._observed.append((observers, observer))

    def suspend(self, begins: bool) -> None:  # noqa: FBT001 - an observer of compilations
        """Take the patches out while the compiler looks, so that nothing of ours is in what it makes or guards."""
        if begins:
            self._suspended = [patch for patch in reversed(self._patches) if _undo(patch)]
            return
        while self._suspended:
            patch = self._suspended.pop()
            owner, name, own, replacement = patch
            if _own_entry(owner, name) is own and any(patch is kept for kept in self._patches):
                setattr(owner, name, replacement)

    def uninstall(self) -> None:
        """Undo every patch, the newest first, and observe nothing any more."""
        self.installed = False
        while self._patches:
            _undo(self._patches.pop())
        while self._observed:
            observers, observer = self._observed.pop()
            observers.remove(observer)

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that an exception in it disables this hook instead of reaching the caller."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            if not self.installed:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:
                self.host.hook_failed(self, error)

        return call


def around(
    recorder: Recorder,
    call: Callable[..., Any],
    before: Callable[..., Any],
    after: Callable[[Any, bool, Any], object] = lambda _state, _succeeded, _result: None,
) -> Callable[..., Any]:
    """Return what stands in for ``call``. Where the hot path is native it has no frame: tracebacks are as without it.

    Args:
        recorder: of the process.
        call: a function or a method.
        before: called first, with the same arguments. Must not raise.
        after: called at the end with what ``before`` returned, unless that was ``None``, with whether the call
            succeeded, and with its result. Must not raise.
    """
    if recorder.native is not None:
        return functools.update_wrapper(recorder.native.around(call, before, after), call)

    @functools.wraps(call)
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


def interval(recorder: Recorder, call: Callable[..., Any], begin: Callable[..., Token | None]) -> Callable[..., Any]:
    """Return what stands in for ``call`` and is an interval: from ``begin``, which returns its token, to its end."""
    return around(recorder, call, begin, lambda token, _succeeded, _result: recorder.end(token))


def always(*_args: Any, **_kwargs: Any) -> bool:
    """Have :func:`around` call what comes after, whatever the arguments."""
    return True


def _own_entry(owner: Any, name: str) -> Any:
    return owner.__dict__.get(name, _MISSING)


def _undo(patch: _Patch) -> bool:
    owner, name, own, replacement = patch
    if _own_entry(owner, name) is not replacement:
        return False  # somebody else has patched it since, and what they put there calls ours
    if own is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
    return True
