"""What every hook shares: patches that can be undone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec

from laggard._part import Host, Part

if TYPE_CHECKING:
    from laggard._events import Token
    from laggard._recorder import Recorder

_Arguments = ParamSpec("_Arguments")

_MISSING = object()


_Patch = tuple[Any, str, Any, Any]
"""Owner, attribute, the owner's own entry before, and what stands there now."""


class Hook(Part):
    """A set of patches with one purpose.

    A subclass names what it patches in :meth:`targets`: for each torch module a function that is called with the
    module once it is imported. Patches are made with :meth:`replace` and undone together.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._patches: list[_Patch] = []
        self._suspended: list[_Patch] = []
        self._observed: list[tuple[list[Any], Any]] = []

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Return the torch modules that the hook waits for, each with what is done then; none if it only looks on."""
        return {}

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
        super().uninstall()
        while self._patches:
            _undo(self._patches.pop())
        while self._observed:
            observers, observer = self._observed.pop()
            observers.remove(observer)


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
    return functools.update_wrapper(recorder.path.around(call, before, after), call)


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
