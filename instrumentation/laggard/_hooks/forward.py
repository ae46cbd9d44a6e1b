"""Forward passes of the model as a whole.

No module hook and no patch of ``nn.Module`` stays: both cost every submodule and the first break compiled graphs.
Instead the outermost modules are found once. While one step runs, ``nn.Module.__call__`` notes which classes are
called from outside any other module; then it is restored, and only those classes get a wrapper of their own. Classes
that stand for a whole model (DDP, FSDP, a compiled module) get theirs when they are imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from laggard._hooks.base import Hook, HookHost
from laggard._hooks.compiler import show_compiler
from laggard._partition import Step
from laggard._recorder import EVALUATION_FORWARD
from laggard.conventions import Phase

if TYPE_CHECKING:
    from laggard._compiled import HotPath

#: Classes that stand for a whole model, by the module that defines them; these modules come after torch itself.
_OUTERMOST = {
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
    "torch._dynamo.eval_frame": "OptimizedModule",
}

#: Steps that a search lasts: the first may have begun before it.
_SEARCHED_STEPS = 2
#: Steps without any forward after which the outermost modules are looked for again, and how often.
_SILENT_STEPS = 3
_MAX_SEARCHES = 5


class ForwardHook(Hook):
    """Times the outermost module calls on the training thread."""

    name = "forward"
    signal = "forward"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        #: Holds something while an outermost module runs.
        self._running: list[bool] = []
        self._wrapped: set[type] = set()
        self._discovered: set[type] = set()
        self._module_class: type | None = None
        self._graph_module_class: type = type(None)
        self._searching = False
        self._searches = 0
        #: Steps of the present search, or else steps without a forward.
        self._steps = 0
        self._observer = self.guarded(self.suspend)

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for ``nn.Module`` and for the classes that stand for a whole model."""
        named = {module: functools.partial(self._wrap_named, name) for module, name in _OUTERMOST.items()}
        return {"torch": self._start, "torch._dynamo": self._hide, **named}

    def steps_ended(self, steps: list[Step]) -> None:
        """End the search for outermost modules, or begin another one when no forward is seen any more.

        On the drain thread, so a search lasts for whole steps.
        """
        if self._module_class is None:
            return  # steps named by hand in a process without torch
        if self._searching:
            self._steps += len(steps)
            if self._steps >= _SEARCHED_STEPS and self._discovered:
                self._stop_search()
        elif steps:
            forwards = any(step.phases[Phase.FORWARD] for step in steps)
            self._steps = 0 if forwards else self._steps + len(steps)
            if self._steps >= _SILENT_STEPS and self._searches < _MAX_SEARCHES:
                self._search()

    def _start(self, torch: ModuleType) -> None:
        # Not when their own modules are imported: torch is then only half there.
        self._module_class = torch.nn.Module
        self._graph_module_class = torch.fx.GraphModule
        self.observe(self.host.compilation_observers, self._observer)
        self._wrap(torch.nn.parallel.DistributedDataParallel)
        self._search()

    def _hide(self, dynamo: ModuleType) -> None:
        # The compiler keeps what it finds when it is imported, to tell modules that nobody has patched.
        compiler = [module for name, module in list(sys.modules.items()) if name.startswith(dynamo.__name__)]
        for _, _, _, replacement in self._patches:
            for module in compiler:
                for name, value in list(vars(module).items()):
                    if value is replacement:
                        setattr(module, name, replacement.__wrapped__)

    def _search(self) -> None:
        self._searching = True
        self._searches += 1
        self._steps = 0
        self.replace(self._module_class, "__call__", functools.partial(self._time, found=self._found))

    def _found(self, module: Any) -> None:
        # What a compiler made is called where the module that it was made from is, inside or outside of a graph.
        if not isinstance(module, self._graph_module_class):
            self._discovered.add(module.__class__)

    def _stop_search(self) -> None:
        self._searching = False
        self.restore(self._module_class, "__call__")
        for found in self._discovered:
            self._wrap(found)

    def _wrap_named(self, name: str, module: ModuleType) -> None:
        self._wrap(getattr(module, name))

    def _wrap(self, module_class: type) -> None:
        # A subclass of a wrapped class inherits the wrapper.
        if self._wrapped.isdisjoint(module_class.__mro__):
            self._wrapped.add(module_class)
            self.replace(module_class, "__call__", self._time)

    def _time(self, call: Callable[..., Any], found: Callable[[Any], None] | None = None) -> Callable[..., Any]:
        compiled = self.recorder.compiled
        wrapper = self._in_python(call, found) if compiled is None else self._compiled(call, found, compiled)
        # What a compiler follows is not timed, and has to be a function of Python for it.
        show_compiler(call, wrapper)
        return wrapper

    def _compiled(
        self, call: Callable[..., Any], found: Callable[[Any], None] | None, compiled: HotPath
    ) -> Callable[..., Any]:
        torch = sys.modules["torch"]
        evaluation, graph = EVALUATION_FORWARD, self._graph_module_class
        timed = compiled.timed_forward(
            call, Phase.FORWARD, evaluation, torch.compiler, self.host.traced, graph, torch.is_grad_enabled, found
        )

        @functools.wraps(call)
        def __call__(*args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for the method
            return timed(*args, **kwargs)

        return __call__

    def _in_python(self, call: Callable[..., Any], found: Callable[[Any], None] | None) -> Callable[..., Any]:
        begin, end, evaluate = self.recorder.begin, self.recorder.end, self.recorder.evaluate
        forward = int(Phase.FORWARD)
        running, traced = self._running, self.host.traced
        graph = self._graph_module_class
        torch = sys.modules["torch"]
        # What torch.compiler.is_compiling() reads, without the calls, which are cold after an optimizer's step.
        compiler = torch.compiler
        is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled

        @functools.wraps(call)
        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for the method
            if running or compiler._is_compiling_flag or (traced.running and isinstance(module, graph)):  # noqa: SLF001
                return call(module, *args, **kwargs)
            running.append(True)
            token = begin(forward) if module.training and is_grad_enabled() else evaluate()
            try:
                return call(module, *args, **kwargs)
            finally:
                running.pop()
                end(token)
                if found is not None and token is not None:
                    found(module)

        return __call__
