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
#: Ray Train calls this with what the script's function raised. The worker lives on, and its group is destroyed as ever.
_RAY, _CAUGHT = "ray.train.v2._internal.execution.worker_group.thread_runner", "construct_user_exception_with_traceback"


class EndingHook(Hook):
    """Wraps ``destroy_process_group``: what a rank does after it, and for how long, is no training and no stall.

    In a worker of Ray Train, an exception of the training function ends the rank.
    """

    name = "ending"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch's distributed package, and for what calls the training function in Ray."""
        return {"torch.distributed": self._patch, _RAY: self._patch_ray}

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

    def _patch_ray(self, runner: ModuleType) -> None:
        if hasattr(runner, _CAUGHT):
            self.replace(runner, _CAUGHT, self._wrap_caught)

    def _wrap_caught(self, construct: Callable[..., Any]) -> Callable[..., Any]:
        failed = self.guarded(self.host.training_failed)

        def before(error: BaseException, *_args: Any, **_kwargs: Any) -> None:
            failed(error)

        return around(self.recorder, construct, before)
