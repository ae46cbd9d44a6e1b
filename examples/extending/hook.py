"""Times the clipping of gradients, as a part of the optimizer: ``_hooks/clipping.py``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook
from laggard.shared.phases import Phase


class ClippingHook(Hook):
    """Wraps ``torch.nn.utils.clip_grad_norm_``."""

    name = "clipping"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch's utilities."""
        return {"torch.nn.utils": self._patch}

    def _patch(self, module: ModuleType) -> None:
        # What is replaced here is put back when the hook is uninstalled.
        self.replace(module, "clip_grad_norm_", self._wrap)

    def _wrap(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        begin, end = self.recorder.begin, self.recorder.end

        # On the training thread nothing runs but these two, which neither raise nor wait.
        @functools.wraps(clip)
        def timed(*args: Any, **kwargs: Any) -> Any:
            token = begin(Phase.OPTIMIZER)
            try:
                return clip(*args, **kwargs)
            finally:
                end(token)

        return timed
