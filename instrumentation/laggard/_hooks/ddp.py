"""The exposed wait of DistributedDataParallel.

Its all-reduces are issued in C++ while backward runs. What the rank loses is the time between its own last gradient
and the end of backward, when it does nothing but wait for peers. The reducer notes when each gradient was ready; one
call after backward reads that. The broadcast of buffers in forward is a wait of the same kind.

On a device that time is of no use, since the host is ahead. There the wait begins where the last bucket is handed over:
a pre-hook of its process group notes that, or, where torch has none (before 2.14), a hook on the gradient that is last.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any
from weakref import ref

from laggard._hooks.base import Hook
from laggard._hooks.waiting import in_backward
from laggard._part import Host
from laggard.shared.phases import Phase

#: A plain number, and what is asked of others is kept: after backward the caches are the model's.
_COMMUNICATION = int(Phase.COMMUNICATION)


class _Clock:
    """What is known of one reducer's clock."""

    __slots__ = ("handle", "last", "newest_gradient", "parameters", "reducer", "started")

    def __init__(self, reducer: Any) -> None:
        self.reducer = ref(reducer)
        #: Those whose gradients it reduces, in its order; empty where nobody saw it being made.
        self.parameters: tuple[ref[Any], ...] = ()
        #: The place of the one whose gradient was last, and what takes the hook off it.
        self.last = -1
        self.handle: Any = None
        #: When the reducer started it: where it was told that the next backward reduces.
        self.started = 0
        #: The newest gradient's time on it at the last backward, to tell an update from old numbers.
        self.newest_gradient = 0


class DistributedDataParallelHook(Hook):
    """Adds the exposed wait of DDP as communication inside backward and forward."""

    name = "ddp"
    signal = "communication"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        #: Of all reducers, which are few. With a dictionary of weak keys all of it takes twice as long, caches cold.
        self._clocks: list[_Clock] = []
        self._observer = self.guarded(self._after_backward)
        self._exposure = host.exposure
        self._add = host.recorder.add
        self._is_compiling: Callable[[], bool] = bool
        #: By a device's clock the newest wait has no begin.
        self._unplaced = False
        #: No pre-hook tells when the last bucket is handed over.
        self._follows = False
        self._noted = self.guarded(self._note_edge)

    @property
    def available(self) -> bool:
        """Not where gradients are reduced and nobody saw when the last of them was handed over."""
        return self.installed and not self._unplaced

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, which brings DistributedDataParallel."""
        return {"torch": self._patch}

    def uninstall(self) -> None:
        """Undo the patches and take the hooks off the gradients."""
        super().uninstall()
        for clock in self._clocks:
            if clock.handle is not None:
                clock.handle.remove()
        self._clocks = []

    def _patch(self, torch: ModuleType) -> None:
        if not torch.distributed.is_available():
            return
        self._follows = not hasattr(torch.distributed.ProcessGroup, "register_pre_hook")
        self._is_compiling = torch.compiler.is_compiling
        self.replace(torch.nn.parallel.DistributedDataParallel, "_sync_buffers", self._wrap_sync_buffers)
        # On the reducer, not on the module: a pipeline prepares it at the last of its backward passes.
        self.replace(torch.distributed.Reducer, "prepare_for_backward", self._wrap_prepare)
        if self._follows:
            self.replace(torch.distributed.Reducer, "__init__", self._wrap_init)

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

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        made = self.guarded(self._made)

        @functools.wraps(init)
        def __init__(reducer: Any, parameters: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - for the method
            init(reducer, parameters, *args, **kwargs)
            made(reducer, parameters)

        return __init__

    def _made(self, reducer: Any, parameters: Any) -> None:
        self._add_clock(reducer).parameters = tuple(map(ref, parameters))

    def _prepared(self, reducer: Any) -> None:
        for clock in self._clocks:
            if clock.reducer() is reducer:
                clock.started = time.perf_counter_ns()
                return
        self._add_clock(reducer).started = time.perf_counter_ns()

    def _add_clock(self, reducer: Any) -> _Clock:
        self._clocks = [clock for clock in self._clocks if clock.reducer() is not None]
        clock = _Clock(reducer)
        self._clocks.append(clock)
        self.observe(self.host.backward_observers, self._observer)
        return clock

    def _note_edge(self, *_gradients: Any) -> None:
        """Note where the last gradient is ready. On autograd's thread of the device, after the reducer's own hook."""
        recorder = self.recorder
        if in_backward(recorder):
            at = self._exposure.issued_at = time.perf_counter_ns()
            recorder.edge(at)
            recorder.self_time_ns += time.perf_counter_ns() - at

    def _follow(self, clock: _Clock, times: list[int], newest: int) -> bool:
        """Have an edge noted where the last gradient of the next backward is ready. Return whether this one's was."""
        if not self._follows:
            return True
        if not clock.parameters:
            return False
        if clock.last >= 0 and times[clock.last] == newest:
            return clock.handle is not None
        if clock.handle is not None:
            clock.handle.remove()
            clock.handle = None
        clock.last = times.index(newest)
        parameter = clock.parameters[clock.last]()
        if parameter is not None and (self.recorder.device is not None or parameter.device.type != "cpu"):
            # The order of gradients is that of the graph, so it is this one again. Nothing of the parameter changes.
            edge = sys.modules["torch"].autograd.graph.get_gradient_edge(parameter)
            clock.handle = edge.node.register_hook(self._noted)
        return False

    def _after_backward(self, started: int, ended: int) -> None:
        ready = 0
        unread = False
        placed = True
        for clock in self._clocks:
            reducer = clock.reducer()
            if reducer is None or not clock.started:
                continue
            # Inside no_sync(), or in the backward of another model, the numbers are those of an earlier one.
            times = reducer.get_backward_stats()
            newest = max(times, default=0)
            if newest != clock.newest_gradient:
                placed &= self._follow(clock, times, newest)
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
            self._unplaced = not placed or exposure.issued_at <= started
            if not self._unplaced:
                self._add(_COMMUNICATION, exposure.issued_at, ended)
        # Counted as self time here, since the recorder saw none of it.
        self.recorder.self_time_ns += time.perf_counter_ns() - ended
