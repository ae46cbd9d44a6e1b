"""Modules that have moved: what a script imports by the old name is what there is by the new one, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_SHARED = "laggard.shared."
_KEPT = ("control", "dumps", "environment", "peers", "statefile", "untrusted")
#: Old name, and the modules that have its contents now.
MOVED: dict[str, tuple[str, ...]] = {
    "laggard.conventions": tuple(
        _SHARED + name for name in ("attributes", "metrics", "process_metrics", "phases", "names")
    ),
    **{f"laggard.{name}": (_SHARED + name,) for name in _KEPT},
    "laggard._hang": ("laggard._flight_recorder",),
}


class _Moved:
    """Finds and loads old names, once nobody else has found them.

    Not by the classes of ``importlib.abc``, whose import takes 13 ms.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module that has moved is imported, None for any other."""
        del path, target
        loader: Any = self
        return ModuleSpec(fullname, loader) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that holds what the new ones do."""
        found = ModuleType(spec.name)
        for name in MOVED[spec.name]:
            vars(found).update(
                {key: value for key, value in vars(importlib.import_module(name)).items() if key[:2] != "__"}
            )
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Say where it is now."""
        where = ", ".join(MOVED[module.__name__])
        warnings.warn(f"{module.__name__} has moved to {where}", DeprecationWarning, stacklevel=2)


def find_old_names() -> None:
    """Have imports by old names work."""
    sys.meta_path.append(_Moved())
