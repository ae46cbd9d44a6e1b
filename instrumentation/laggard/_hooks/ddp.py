"""The exposed wait of DistributedDataParallel.

Its all-reduces are issued in C++ while backward runs. What the rank loses is the time between its own last gradient
and the end of backward, when it does nothing but wait for peers. The reducer notes when each gradient was ready; one
call after backward reads that. The broadcast of buffers in forward is a wait of the same kind.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from laggard._hooks.base import Hook, HookHost
from laggard.conventions import Phase


class _Replica:
    """What is known of one DistributedDataParallel instance."""

    __slots__ = ("forward_ended", "newest_gradient")

    def __init__(self) -> None:
        #: When the reducer started its clock: at the end of the newest forward that backward has not used yet.
        self.forward_ended = 0
        #: The newest gradient's time on that clock at the last backward, to tell an update from old numbers.
        self.newest_gradient = 0


class DistributedDataParallelHook(Hook):
    """Adds the exposed wait of DDP as communication inside backward and forward."""

    name = "ddp"
    signal = "communication"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        self._replicas: WeakKeyDictionary[Any, _Replica] = WeakKeyDictionary()
        self._observer = self.guarded(self._after_backward)
        self._is_compiling: Callable[[], bool] = bool

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, which brings DistributedDataParallel."""
        return {"torch": self._patch}

    def uninstall(self) -> None:
        """Undo the patches and stop listening to backward."""
        super().uninstall()
        if self._observer in self.host.backward_observers:
            self.host.backward_observers.remove(self._observer)

    def _patch(self, torch: ModuleType) -> None:
        replica_class = torch.nn.parallel.DistributedDataParallel
        self._is_compiling = torch.compiler.is_compiling
        self.replace(replica_class, "_sync_buffers", self._wrap_sync_buffers)
        self.replace(replica_class, "_post_forward", self._wrap_post_forward)
        self.host.backward_observers.append(self._observer)

    def _wrap_sync_buffers(self, sync_buffers: Callable[[Any], Any]) -> Callable[[Any], Any]:
        recorder = self.recorder
        is_compiling = self._is_compiling

        @functools.wraps(sync_buffers)
        def _sync_buffers(ddp: Any) -> Any:
            if is_compiling():
                return sync_buffers(ddp)
            token = recorder.begin(Phase.COMMUNICATION)
            try:
                return sync_buffers(ddp)
            finally:
                recorder.end(token)

        return _sync_buffers

    def _wrap_post_forward(self, post_forward: Callable[..., Any]) -> Callable[..., Any]:
        replicas = self._replicas
        is_compiling = self._is_compiling

        @functools.wraps(post_forward)
        def _post_forward(ddp: Any, output: Any) -> Any:
            result = post_forward(ddp, output)
            if not is_compiling():
                replica = replicas.get(ddp)
                if replica is None:
                    replica = replicas[ddp] = _Replica()
                replica.forward_ended = time.perf_counter_ns()
            return result

        return _post_forward

    def _after_backward(self, started: int, ended: int) -> None:
        if self.recorder.device is not None:
            return  # the reducer's statistics are by the host's clock
        ready = 0
        for ddp, replica in list(self._replicas.items()):
            forward_ended, replica.forward_ended = replica.forward_ended, 0
            # Inside no_sync() the reducer does not reduce and its numbers are those of an earlier pass.
            if not forward_ended or not ddp.require_backward_grad_sync:
                continue
            newest = max(ddp.reducer.get_backward_stats(), default=0)
            if newest != replica.newest_gradient:
                replica.newest_gradient = newest
                ready = max(ready, forward_ended + newest)
        if ready:
            self.recorder.add(Phase.COMMUNICATION, min(max(ready, started), ended), ended)
            # Counted as self time here, since the recorder saw none of it.
            self.recorder.self_time_ns += time.perf_counter_ns() - ended
