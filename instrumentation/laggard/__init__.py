"""OpenTelemetry instrumentation of PyTorch training: which rank, which phase, which cause.

Without a change to a script, under OpenTelemetry's own launcher::

    opentelemetry-instrument torchrun --nproc-per-node 8 train.py

By hand, where the loop has no DataLoader, or to name a phase of one's own::

    import laggard

    laggard.instrument()
    for batch in batches:
        with laggard.step():
            with laggard.phase("data"):
                inputs = fetch(batch)
            train(inputs)

Nothing here raises into training, and nothing is left after :func:`uninstrument`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from laggard._moved import find_old_names
from laggard.shared import statefile
from laggard.version import __version__

if TYPE_CHECKING:
    from laggard._api import (
        dump_trace,
        instrument,
        log,
        phase,
        profile,
        set_peer_group,
        step,
        summary,
        uninstrument,
    )

__all__ = [
    "__version__",
    "dump_trace",
    "instrument",
    "log",
    "phase",
    "profile",
    "set_peer_group",
    "step",
    "summary",
    "uninstrument",
]

find_old_names()


def _module() -> str:
    """Return the module that has what a script calls: one that measures nothing where Python has no fcntl (Windows)."""
    return "_api" if statefile.fcntl is not None else "_nowhere"


def __getattr__(name: str) -> Any:
    # The node exporter and the command line read names from this package and must not load OpenTelemetry for it.
    if name in __all__:
        _api = import_module(f"laggard.{_module()}")
        # Found without this function from now on.
        return globals().setdefault(name, getattr(_api, name))
    raise AttributeError(f"module 'laggard' has no attribute {name!r}")
