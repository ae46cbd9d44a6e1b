"""DataLoader workers: they inherit the instrumentation and must not export."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook
from laggard._hooks.loaders import WORKER_LOOPS


class WorkerSilenceHook(Hook):
    """Wraps the function that a worker process runs, so that the first thing in a worker is to fall silent."""

    name = "worker_silence"
    former_name = "worker"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the modules that workers are started from."""
        return dict.fromkeys(WORKER_LOOPS, self._patch)

    def _patch(self, module: ModuleType) -> None:
        self.replace(module, "_worker_loop", functools.partial(self._wrap, module.__name__))

    def _wrap(self, module: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        host = self.host

        # Started with "spawn", a worker finds this function by its name, and in it the patch of its own process.
        @functools.wraps(loop)
        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            host.not_training()
            return loop(*args, **kwargs)

        _worker_loop.__module__ = module
        return _worker_loop
