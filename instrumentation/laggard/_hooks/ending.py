"""The end of training in a process that goes on: the ranks have taken their process group down."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook, always, around

#: Modules that hold `destroy_process_group` under its name.
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed")


class EndingHook(Hook):
    """Wraps ``destroy_process_group``: what a rank does after it, and for how long, is no training and no stall."""

    name = "ending"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch's distributed package."""
        return {"torch.distributed": self._patch}

    def _patch(self, distributed: ModuleType) -> None:
        if distributed.is_available():
            wrap = functools.cache(self._wrap)  # under each of its names the same object
            for name in _MODULES:
                self.replace(sys.modules[name], "destroy_process_group", wrap)

    def _wrap(self, destroy: Callable[..., Any]) -> Callable[..., Any]:
        ended = self.guarded(self.host.training_ended)
        is_initialized: Callable[[], bool] = sys.modules["torch.distributed"].is_initialized

        def after(_state: Any, succeeded: bool, _result: Any) -> None:  # noqa: FBT001 - as around calls it
            # One group of several may be destroyed while training goes on, and all of them because it failed.
            if succeeded and not is_initialized() and sys.exc_info()[0] is None:
                ended()

        return around(self.recorder, destroy, always, after)
