"""``torch.compile`` of functions: an optimizer's step, a whole train step, a loss.

Inside of compiled code nothing can be timed without changing it. So what ``torch.compile`` returns for a function is
timed as a whole, from outside, and called for what it turned out to be. Compiled modules are the forward hook's.

A compilation takes seconds and says nothing about the steps to come: the compiler's own callbacks mark the step that it
falls into, and count recompilations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from threading import get_ident
from time import perf_counter_ns
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from laggard._events import COMPILATION, EVALUATION_FORWARD, UPDATE
from laggard._hooks.base import Hook
from laggard._part import Host
from laggard._recorder import Recorder
from laggard.shared import metrics
from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._report import Report
    from laggard._steps import Step


class _Function:
    """What is known of one compiled function."""

    __slots__ = ("backwards", "kind", "updates")

    def __init__(self) -> None:
        #: It has taken an optimizer's step.
        self.updates = False
        #: What its last call was, as a code of the recorder; `OTHER` until one is known.
        self.kind: int = Phase.OTHER
        #: Backward passes that the process had begun when its last call ended.
        self.backwards = 0


class _Call:
    """One call of a compiled function, from outside of any other code that is compiled."""

    __slots__ = ("backwards", "function", "inside", "result", "started", "token")

    def __init__(self, function: _Function, recorder: Recorder) -> None:
        self.function = function
        self.backwards = recorder.backwards
        #: The phase around the call; none is around it when this is 0.
        self.inside = recorder.phase
        self.token = recorder.begin(function.kind) if function.kind and not self.inside else None
        self.started = perf_counter_ns()
        if self.token is None and (function.updates or not self.inside):
            # What the call turns out to be is placed by its edges, also on a device's clock.
            recorder.edge(self.started)
        self.result: Any = None


class TorchCompileHook(Hook):
    """Times calls of compiled functions from outside, and notes compilations."""

    name = "torch_compile"
    former_name = "compiled"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._backward_ended = 0
        self._observer = self.guarded(self._after_backward)
        self._begins = self.guarded(self._compilation_begins)
        self._ends = self.guarded(self._compilation_ends)
        self._compiler: Any = None
        self._recompilations = 0
        self._reported = 0

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, and for the compiler's callbacks, which come with the first optimizer."""
        return {"torch": self._patch, "torch._dynamo": self._listen}

    def uninstall(self) -> None:
        """Undo the patch and stop listening; functions that are compiled already are only called through."""
        super().uninstall()
        for observer in self.host.compilation_observers:
            observer(False)  # an end that was waited for does not come
        compiler, self._compiler = self._compiler, None
        if compiler is not None and self._begins in compiler.start_callbacks:
            compiler.remove_start_callback(self._begins)
            compiler.remove_end_callback(self._ends)

    def steps_ended(self, steps: list[Step]) -> None:  # noqa: ARG002 - what every hook is told
        """Listen again after ``torch.compiler.reset``, which forgets all listeners."""
        compiler = self._compiler
        if compiler is not None and self._begins not in compiler.start_callbacks:
            compiler.register_start_callback(self._begins)
            compiler.register_end_callback(self._ends)

    def report(self, report: Report) -> None:
        """Report recompilations since the last call."""
        if self._compiler is not None:
            count = self._recompilations
            report.measure(metrics.COMPILE_RECOMPILATIONS, count - self._reported)
            self._reported = count

    def _listen(self, dynamo: ModuleType) -> None:
        self._compiler = dynamo.callback_handler
        self.steps_ended([])

    def _compilation_ends(self, _found: Any) -> None:
        for observer in self.host.compilation_observers:
            observer(False)

    def _compilation_begins(self, found: Any) -> None:
        for observer in self.host.compilation_observers:
            observer(True)
        recorder = self.recorder
        if recorder.thread in (0, get_ident()):
            recorder.mark(COMPILATION)
        # An id is the number of the code and how often it was compiled before. Backward comes later with the same id.
        if found.callback_trigger.name == "DYNAMO" and not found.compile_id.endswith("/0"):
            self._recompilations += 1

    def _after_backward(self, _started: int, ended: int) -> None:
        self._backward_ended = ended

    def _patch(self, torch: ModuleType) -> None:
        self._tensor: type = torch.Tensor
        self._module: type = torch.nn.Module
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self.replace(torch, "compile", self._wrap_compile)

    def _wrap_compile(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_)
        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001 - it stands in for the function
            compiled = compile_(*args, **kwargs)
            given = args[0] if args else kwargs.get("model")
            # A module is compiled in place through a method of its own, and called where any module is.
            of_module = isinstance(getattr(given, "__self__", None), self._module)
            # As a decorator with options it returns a function that comes back here for what it decorates.
            if given is None or of_module or not isinstance(compiled, FunctionType):
                return compiled
            self.observe(self.host.backward_observers, self._observer)
            return self._time(compiled)

        return compile

    def _time(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder
        traced = self.host.traced
        is_compiling = self._is_compiling
        function = _Function()
        done = self.guarded(self._done)

        @functools.wraps(compiled)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self.installed:
                return compiled(*args, **kwargs)
            # Its own step alone, not that of compiled code around it.
            around = traced.running, traced.updated
            traced.running, traced.updated = True, False
            call = _Call(function, recorder)
            try:
                call.result = compiled(*args, **kwargs)
                return call.result
            finally:
                done(call)
                traced.running, traced.updated = around

        # So a second torch.compile finds the function that was compiled, as it would without us.
        vars(timed)["_torchdynamo_wrapper_id"] = id(timed)
        return timed

    def _done(self, call: _Call) -> None:
        recorder = self.recorder
        ended = perf_counter_ns()
        updated = self.host.traced.updated
        if recorder.thread not in (0, get_ident()):
            return
        function = call.function
        if call.token is None and (function.updates or not call.inside):
            recorder.edge(ended)
        function.updates |= updated
        if updated:
            # Nobody sees the backward pass inside of one graph.
            recorder.resume(ended)
        if not call.inside:
            self._place(call, ended, updated=updated)
        elif updated:
            # Part of the phase around it, but for an optimizer's step inside of backward.
            recorder.add(Phase.OPTIMIZER, call.started, ended)
            recorder.add(UPDATE, ended, ended)

    def _place(self, call: _Call, ended: int, *, updated: bool) -> None:
        """Record a call with no phase around it for what it was."""
        recorder, function = self.recorder, call.function
        kind = self._kind(call, updated=updated)
        if call.token is not None:
            ended = recorder.end((kind, *call.token[1:]))
        elif kind:
            recorder.add(kind, call.started, ended)
        if updated and recorder.backwards != call.backwards:
            # A whole train step: what comes after the last backward is the update.
            recorder.add(Phase.OPTIMIZER, min(self._backward_ended, ended), ended)
        elif updated and not kind:
            # A whole train step in one graph: it begins a step, and no part of it can be told from another.
            recorder.add(Phase.FORWARD, call.started, call.started)
        if updated:
            recorder.add(UPDATE, ended, ended)
        function.kind = kind
        function.backwards = recorder.backwards

    def _kind(self, call: _Call, *, updated: bool) -> int:
        function = call.function
        if self.recorder.backwards != call.backwards:
            return Phase.FORWARD  # around the backward pass, which is told apart
        if updated:
            return Phase.OPTIMIZER if call.backwards != function.backwards else Phase.OTHER
        if self._is_differentiable(call.result):
            return Phase.FORWARD
        if function.kind in (Phase.FORWARD, EVALUATION_FORWARD) and not self._is_grad_enabled():
            return EVALUATION_FORWARD
        return Phase.OTHER

    def _is_differentiable(self, result: Any) -> bool:
        values: list[Any] = [result]
        if isinstance(result, Mapping):
            values = [*result.values()]  # pyright: ignore[reportUnknownVariableType] - anything may be in it
        elif isinstance(result, tuple | list):
            values = [*result]  # pyright: ignore[reportUnknownVariableType] - as above
        return any(isinstance(value, self._tensor) and value.requires_grad for value in values)
