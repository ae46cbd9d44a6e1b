"""Gradient scalers of mixed precision: the update that they leave out is a step too, and is counted.

Whether gradients are finite stands in tensors on the device. On the CPU they are read at once. On CUDA each is copied
into pinned memory without waiting, and looked at when the scaler is next used: nothing here waits for a device.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._events import SKIPPED, UPDATE, Token
from laggard._hooks.base import Hook, interval
from laggard._part import Host
from laggard.shared.phases import Phase

#: In pinned memory until the copy has arrived; what is copied is never negative.
_ON_ITS_WAY = -1.0
#: Updates whose outcome is awaited; the device is never that far behind.
_MAX_AWAITED = 16


class GradScalerHook(Hook):
    """Times what a gradient scaler does for an optimizer and tells which updates it leaves out."""

    name = "scaler"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._awaited: deque[list[Any]] = deque(maxlen=_MAX_AWAITED)

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, and for the scaler of sharded models, which has an update of its own."""
        return {
            "torch": self._patch,
            "torch.distributed.fsdp.sharded_grad_scaler": self._patch_sharded,
        }

    def _patch(self, torch: ModuleType) -> None:
        scaler = torch.amp.GradScaler
        self.replace(scaler, "unscale_", self._time)
        self.replace(scaler, "step", self._time)
        self.replace(scaler, "update", self._wrap_update)

    def _patch_sharded(self, module: ModuleType) -> None:
        self.replace(module.ShardedGradScaler, "unscale_", self._time)
        self.replace(module.ShardedGradScaler, "update", self._wrap_update)

    def _time(
        self, method: Callable[..., Any], note: Callable[[Any], None] = lambda _scaler: None
    ) -> Callable[..., Any]:
        recorder = self.recorder
        is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling

        def begin(scaler: Any, *_args: Any, **_kwargs: Any) -> Token | None:
            if is_compiling():
                return None
            note(scaler)
            return recorder.begin(Phase.OPTIMIZER)

        return interval(recorder, method, begin)

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return self._time(update, self.guarded(self._note))

    def _note(self, scaler: Any) -> None:
        """Look at what the scaler found since its last update, before the update forgets it."""
        states: Mapping[int, Mapping[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
        found = [tensor for state in states.values() for tensor in state["found_inf_per_device"].values()]
        if not found:
            return  # not enabled, or only the scale is set
        self.recorder.mark(UPDATE)
        if any(tensor.is_cuda for tensor in found):
            if not sys.modules["torch"].cuda.is_current_stream_capturing():
                self._awaited.append([self._copy(tensor) for tensor in found if tensor.is_cuda])
        elif all(tensor.is_cpu for tensor in found):
            self._awaited.append(found)
        while self._awaited:
            values = [tensor.item() for tensor in self._awaited[0]]
            if _ON_ITS_WAY in values:
                return
            self._awaited.popleft()
            if any(values):
                self.recorder.mark(SKIPPED)

    @staticmethod
    def _copy(tensor: Any) -> Any:
        pinned = sys.modules["torch"].full((), _ON_ITS_WAY, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor, non_blocking=True)
