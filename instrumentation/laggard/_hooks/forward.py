"""Forward passes of the model as a whole.

No module hook and no patch of ``nn.Module`` stays: both cost every submodule and the first break compiled graphs.
Instead the outermost modules are searched for. For two steps after a new optimizer, or two batches of a new loader,
``nn.Module.__call__`` notes which classes are called from outside any other module. Then it is restored, and only those
classes get a wrapper of their own. Classes that stand for a whole model (DDP, FSDP, a compiled module) get theirs when
they are imported, and with a module that only stands around another one goes the class of that other: an evaluation
calls ``ddp.module``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import ModuleType
from typing import Any
from weakref import ref

from laggard._events import EVALUATION_FORWARD, NO_GRAD_FORWARD
from laggard._hooks.base import Hook, around
from laggard._hooks.dataloader import loader_of
from laggard._hooks.torch_compile_state import show_compiler
from laggard._part import Host
from laggard._steps import Step
from laggard.shared.phases import Phase

#: Classes that stand for a whole model, by the module that defines them; these modules come after torch itself.
_OUTERMOST = {
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
    "torch._dynamo.eval_frame": "OptimizedModule",
}

#: Steps that a search lasts where it finds a module, and where it finds none.
_SEARCHED_STEPS = 2
_MAX_SEARCHED_STEPS = 16
#: Batches of an iterator that a search lasts where no step ends.
_SEARCHED_BATCHES = 2
#: Searches that may find no new class, and the steps that allow one more: a loop may make a loader in each step.
_MAX_FRUITLESS = 8
_STEPS_PER_FRUITLESS = 32
#: Steps without any forward after which the outermost modules are looked for again.
_SILENT_STEPS = 3
#: Modules of these packages stand in models everywhere: as the inside of another one they are not worth a wrapper.
_BUILDING_BLOCKS = "torch.nn.modules."


class ForwardHook(Hook):
    """Times the outermost module calls on the training thread."""

    name = "forward"
    signal = "forward"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._wrapped: set[type] = set()
        self._discovered: set[type] = set()
        #: Classes whose modules are trained in training mode: one in ``eval()`` mode evaluates, with gradients too.
        self._trained: set[type] = set()
        self._module_class: type = type(None)
        self._graph_module_class: type = type(None)
        self._searching = False
        #: A search has ended, so that the classes of the first steps are known.
        self._searched = False
        #: When the present search began.
        self._since = 0
        #: Steps of the present search, or else steps without a forward.
        self._steps = 0
        #: All steps.
        self._ended = 0
        #: An outermost module was called in the present search.
        self._found_any = False
        #: Loaders that a search was made for; and searches that found no class that was not known.
        self._loaders: set[int] = set()
        self._fruitless = 0
        #: The iterator that the present search began with, if it did.
        self._iterator: ref[Any] | None = None
        #: The compiler has looked at code: from then on nothing starts a search.
        self._compiles = False
        self._observer = self.guarded(self._suspend)
        self._unpatched = self.guarded(self.suspend)
        self._begins = self.guarded(self._iterator_begins)
        self._adds = self.guarded(self._parameters_added)
        self._finds = self.guarded(self._found)

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for ``nn.Module`` and for the classes that stand for a whole model."""
        named = {module: functools.partial(self._wrap_named, name) for module, name in _OUTERMOST.items()}
        return {"torch": self._start, "torch._dynamo": self._hide, **named}

    def steps_ended(self, steps: list[Step]) -> None:
        """End the search for outermost modules, or begin another one when no forward is seen any more.

        On the drain thread, so a search lasts for whole steps.
        """
        if self._module_class is type(None):
            return  # steps named by hand in a process without torch
        self._ended += len(steps)
        if self._searching:
            # Those before it may come late: what a new model calls is found in its own steps.
            steps = [step for step in steps if step.started >= self._since]
        forwards = any(step.phases[Phase.FORWARD] for step in steps)
        if self._searching:
            self._steps += len(steps)
            self._found_any |= forwards
            if self._search_is_over():
                self._stop_search()
        elif steps:
            self._steps = 0 if forwards else self._steps + len(steps)
            if self._steps >= _SILENT_STEPS:
                self._search()

    def _search_is_over(self) -> bool:
        if self._steps >= (_SEARCHED_STEPS if self._found_any else _MAX_SEARCHED_STEPS):
            return True
        if self._iterator is None or not self._searched or not self._found_any:
            return False
        # What an evaluation calls is known after two of its batches; it may last for hours within one step.
        iterator = self._iterator()
        return iterator is None or getattr(iterator, "_num_yielded", 0) > _SEARCHED_BATCHES

    def _start(self, torch: ModuleType) -> None:
        # Not when their own modules are imported: torch is then only half there.
        self._module_class = torch.nn.Module
        self._graph_module_class = torch.fx.GraphModule
        self.observe(self.host.compilation_observers, self._observer)
        self.observe(self.host.profiler_observers, self._unpatched)
        self.observe(self.host.iterator_observers, self._begins)
        # What a new one calls. Parsers of command lines read the source of ``__init__``, and must find it.
        self.replace(torch.optim.Optimizer, "add_param_group", self._wrap_adding)
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

    def _suspend(self, begins: bool) -> None:  # noqa: FBT001 - an observer of compilations
        self._compiles = True
        self.suspend(begins)

    def _iterator_begins(self, iterator: Any) -> None:
        """Search again while a new loader's first batches are used: an evaluation may call what training does not."""
        loader = loader_of(iterator)
        if loader not in self._loaders and self._search():
            self._loaders.add(loader)
            self._iterator = ref(iterator)

    def _wrap_adding(self, add: Callable[..., None]) -> Callable[..., None]:
        return around(self.recorder, add, self._adds)

    def _parameters_added(self, *_args: Any, **_kwargs: Any) -> None:
        """Search again: another model may be trained now."""
        self._search()

    def _search(self) -> bool:
        """Begin a search, unless one is made or would cost too much; return whether it has begun."""
        allowed = _MAX_FRUITLESS + self._ended // _STEPS_PER_FRUITLESS
        if self._searching or self._compiles or self._fruitless >= allowed:
            return False
        self._searching = True
        self._since = perf_counter_ns()
        self._steps = 0
        self._found_any = False
        self._iterator = None
        self.replace(self._module_class, "__call__", functools.partial(self._time, found=self._finds))
        return True

    def _found(self, module: Any) -> None:
        self._found_any = True
        # Each graph module has a class of its own, which torch.fx may write again. It calls that of all of them.
        graph = isinstance(module, self._graph_module_class)
        found = {self._graph_module_class if graph else module.__class__, *self._inside(module)}
        self._discovered |= found
        if module.training and sys.modules["torch"].is_grad_enabled():
            self._trained |= found

    def _inside(self, module: Any) -> set[type]:
        """Return the classes of the modules that ``module`` stands around: the only one with parameters, and so on."""
        inside: set[type] = set()
        while True:
            children = list(module.children())
            if len(children) > 1:
                # Not asked of one alone: DDP takes the parameters of a tensor-parallel model off between forwards.
                children = [child for child in children if next(child.parameters(), None) is not None]
            if len(children) != 1 or next(module.parameters(recurse=False), None) is not None:
                return inside
            (module,) = children
            if not module.__class__.__module__.startswith(_BUILDING_BLOCKS):
                inside.add(module.__class__)

    def _stop_search(self) -> None:
        if vars(self._module_class).get("__call__") is not self._patches_of_module():
            return  # somebody else has patched it on top of ours, as torch.fx does while it traces
        self._searching = False
        self._searched = True
        self._steps = 0
        self.restore(self._module_class, "__call__")
        discovered, self._discovered = self._discovered, set()
        wrapped = len(self._wrapped)
        for found in discovered:
            self._wrap(found)
        self._fruitless += len(self._wrapped) == wrapped

    def _patches_of_module(self) -> Any:
        return next((patch[3] for patch in reversed(self._patches) if patch[0] is self._module_class), None)

    def _wrap_named(self, name: str, module: ModuleType) -> None:
        self._wrap(getattr(module, name))

    def _wrap(self, module_class: type) -> None:
        # A subclass of a wrapped class inherits the wrapper.
        if self._wrapped.isdisjoint(module_class.__mro__):
            self._wrapped.add(module_class)
            base = None
            if "__call__" not in vars(module_class):
                base = next(above for above in module_class.__mro__ if "__call__" in vars(above))
            self.replace(module_class, "__call__", functools.partial(self._time, base=base))

    def _time(
        self, call: Callable[..., Any], found: Callable[[Any], None] | None = None, base: type | None = None
    ) -> Callable[..., Any]:
        """Return what times ``call``, or with ``base`` what this class has in its place at that moment."""
        if base is self._module_class and self._searching:
            # What is there after the search. Somebody else may have patched on top of ours, for a while or for good.
            call = self._patches_of_module().__wrapped__
        torch = sys.modules["torch"]
        timed = self.recorder.path.timed_forward(
            call,
            Phase.FORWARD,
            EVALUATION_FORWARD,
            NO_GRAD_FORWARD,
            torch.compiler,
            self.host.traced,
            self._graph_module_class,
            torch.is_grad_enabled,
            found,
            base,
            _evaluates,
            self._trained,
        )

        # torch's profiler looks in the frame for a local called self, and ends the process where there is none.
        @functools.wraps(call)
        def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for the method
            # Pickled by value, as a class of a script is, the one is the other.
            return call(self, *args, **kwargs) if timed is call else timed(self, args, kwargs)

        # What a compiler follows is not timed, and has to be a function of Python for it.
        show_compiler(call, __call__)
        return __call__


def _evaluates(module: Any) -> bool:
    """Return whether a module is in ``eval()`` mode, or the only one inside it is: that of DDP, say. Never raises."""
    try:
        while module.training:
            inside: list[Any] = [*module._modules.values()]  # noqa: SLF001 - without the generators of the public way
            if len(inside) != 1:
                return False
            (module,) = inside
    except Exception:  # a module of its own kind
        return False
    return True
