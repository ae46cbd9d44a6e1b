"""The end of training in a process that goes on: the process group is destroyed, or Ray has caught an exception."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook, always, around

#: Modules that hold `destroy_process_group` under its name.
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed")
#: Ray calls these with what the script's function raised: Train, then Tune. The worker lives on and ends as ever.
_RAY = {
    "ray.train.v2._internal.execution.worker_group.thread_runner": ("", "construct_user_exception_with_traceback"),
    "ray.air._internal.util": ("RunnerThread", "_propagate_exception"),
}


class EndingHook(Hook):
    """Wraps ``destroy_process_group``: what a rank does after it, and for how long, is no training and no stall.

    In a worker of Ray Train or Ray Tune, an exception of the training function ends the rank.
    """

    name = "ending"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch's distributed package, and for what calls the training function in Ray."""
        caught = {module: functools.partial(self._patch_ray, *names) for module, names in _RAY.items()}
        return {"torch.distributed": self._patch, **caught}

    def _patch(self, distributed: ModuleType) -> None:
        if distributed.is_available():
            wrap = functools.cache(self._wrap)  # under each of its names the same object
            for name in _MODULES:
                self.replace(sys.modules[name], "destroy_process_group", wrap)

    def _wrap(self, destroy: Callable[..., Any]) -> Callable[..., Any]:
        ended, aborted = self.guarded(self.host.training_ended), self.guarded(self.host.training_aborted)
        is_initialized: Callable[[], bool] = sys.modules["torch.distributed"].is_initialized

        def after(_state: Any, succeeded: bool, _result: Any) -> None:  # noqa: FBT001 - as around calls it
            # One group of several may be destroyed while training goes on, and all of them because it failed.
            if succeeded and not is_initialized() and sys.exc_info()[0] is None:
                (aborted if self._trains_elsewhere() else ended)()

        return around(self.recorder, destroy, always, after)

    def _trains_elsewhere(self) -> bool:
        """Return whether the thread that trains lives and is another."""
        thread = self.recorder.thread
        return thread != threading.get_ident() and any(thread == other.ident for other in threading.enumerate())

    def _patch_ray(self, owner: str, name: str, module: ModuleType) -> None:
        holder = getattr(module, owner, None) if owner else module
        if hasattr(holder, name):
            self.replace(holder, name, self._wrap_caught)

    def _wrap_caught(self, caught: Callable[..., Any]) -> Callable[..., Any]:
        failed = self.guarded(self.host.training_failed)

        def before(*args: Any, **_kwargs: Any) -> None:
            failed(*args[-1:])  # a method has its owner before it

        return around(self.recorder, caught, before)
