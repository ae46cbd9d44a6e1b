"""The end of training in a process that goes on: the ranks have taken their process group down."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook

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
            for name in _MODULES:
                self.replace(sys.modules[name], "destroy_process_group", self._wrap)

    def _wrap(self, destroy: Callable[..., Any]) -> Callable[..., Any]:
        ended = self.guarded(self.host.training_ended)
        is_initialized: Callable[[], bool] = sys.modules["torch.distributed"].is_initialized

        @functools.wraps(destroy)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            result = destroy(*args, **kwargs)
            # One group of several may be destroyed while training goes on, and all of them because it failed.
            if not is_initialized() and sys.exc_info()[0] is None:
                ended()
            return result

        return destroy_process_group
