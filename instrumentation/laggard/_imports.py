"""Calls back when a module has been imported, and at once where it has been already.

The loader that is put around the module's own keeps what others set on it to itself. marimo replaces ``exec_module`` of
each loader that it meets: passed on, it would replace that of the inner loader too, and each would call the other.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any

_Callback = Callable[[ModuleType], None]

#: What is called when a module of this name has been imported.
_waiting: dict[str, list[_Callback]] = {}


def when_imported(name: str, callback: _Callback) -> None:
    """Call back with the module of this name as soon as it is there. ``callback`` must not raise."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    _waiting.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget() -> None:
    """Call nobody back any more."""
    _waiting.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder:
    """Has the others find a module that is waited for, and puts a loader around its own."""

    def __init__(self) -> None:
        #: What the others are asked for, and on which thread.
        self._asked: set[tuple[str, int]] = set()

    def find_spec(
        self,
        name: str,
        path: object = None,  # noqa: ARG002 - the signature is Python's
        target: object = None,  # noqa: ARG002 - the signature is Python's
    ) -> ModuleSpec | None:
        """Return what the other finders found."""
        asked = name, get_ident()
        if name not in _waiting or asked in self._asked:
            return None
        self._asked.add(asked)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asked.remove(asked)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)  # pyright: ignore[reportAttributeAccessIssue] - it has all that is asked
        return spec


class _Loader:
    """Loads a module as its own loader does, and calls back when that is done."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run it. It sees the loader that it would have without this one."""
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for callback in _waiting.pop(module.__spec__.name, ()):
            callback(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_finder = _Finder()
