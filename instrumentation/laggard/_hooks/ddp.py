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
from weakref import ref

from laggard._hooks.base import Hook, HookHost
from laggard.conventions import Phase

#: A plain number, and what is asked of others is kept: after backward the caches are the model's.
_COMMUNICATION = int(Phase.COMMUNICATION)


class _Clock:
    """What is known of one reducer's clock."""

    __slots__ = ("newest_gradient", "reducer", "started")

    def __init__(self, reducer: Any) -> None:
        self.reducer = ref(reducer)
        #: When the reducer started it: where it was told that the next backward reduces.
        self.started = 0
        #: The newest gradient's time on it at the last backward, to tell an update from old numbers.
        self.newest_gradient = 0


class DistributedDataParallelHook(Hook):
    """Adds the exposed wait of DDP as communication inside backward and forward."""

    name = "ddp"
    signal = "communication"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        #: Of all reducers, which are few. With a dictionary of weak keys all of it takes twice as long, caches cold.
        self._clocks: list[_Clock] = []
        self._observer = self.guarded(self._after_backward)
        self._exposure = host.exposure
        self._add = host.recorder.add
        self._is_compiling: Callable[[], bool] = bool
        #: By a device's clock the newest wait has no begin.
        self._unplaced = False

    @property
    def available(self) -> bool:
        """Not where gradients are reduced and nobody saw when the last of them was handed over."""
        return self.installed and not self._unplaced

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, which brings DistributedDataParallel."""
        return {"torch": self._patch}

    def _patch(self, torch: ModuleType) -> None:
        if not torch.distributed.is_available():
            return
        self._is_compiling = torch.compiler.is_compiling
        self.replace(torch.nn.parallel.DistributedDataParallel, "_sync_buffers", self._wrap_sync_buffers)
        # On the reducer, not on the module: a pipeline prepares it at the last of its backward passes.
        self.replace(torch.distributed.Reducer, "prepare_for_backward", self._wrap_prepare)

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

    def _wrap_prepare(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = self._is_compiling
        prepared = self.guarded(self._prepared)

        @functools.wraps(prepare)
        def prepare_for_backward(reducer: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                prepared(reducer)
            return prepare(reducer, *args, **kwargs)

        return prepare_for_backward

    def _prepared(self, reducer: Any) -> None:
        for clock in self._clocks:
            if clock.reducer() is reducer:
                clock.started = time.perf_counter_ns()
                return
        self._clocks = [clock for clock in self._clocks if clock.reducer() is not None]
        clock = _Clock(reducer)
        clock.started = time.perf_counter_ns()
        self._clocks.append(clock)
        self.observe(self.host.backward_observers, self._observer)

    def _after_backward(self, started: int, ended: int) -> None:
        ready = 0
        unread = False
        for clock in self._clocks:
            reducer = clock.reducer()
            if reducer is None or not clock.started:
                continue
            # Inside no_sync(), or in the backward of another model, the numbers are those of an earlier one.
            newest = max(reducer.get_backward_stats(), default=0)
            if newest != clock.newest_gradient:
                ready = max(ready, clock.started + newest)
                clock.newest_gradient = newest
                clock.started = 0
            elif not newest:
                unread = True
        exposure = self._exposure
        if not ready:
            # The first backward of a static graph reduces everything at its end and keeps no times.
            exposure.reduced += unread
            return
        exposure.reduced += 1
        if self.recorder.device is None:
            self._add(_COMMUNICATION, min(max(ready, started), ended), ended)
        else:
            # The reducer's clock is the host's. The last bucket was issued where the last gradients were ready.
            self._unplaced = exposure.issued_at <= started
            if not self._unplaced:
                self._add(_COMMUNICATION, exposure.issued_at, ended)
        # Counted as self time here, since the recorder saw none of it.
        self.recorder.self_time_ns += time.perf_counter_ns() - ended
