"""Optimizer steps, and with them the step boundary: an update ends a training step.

Torch's global hooks reach every ``torch.optim.Optimizer``. What else takes steps:

- An optimizer of somebody else around one of torch's, as Megatron-LM's, ZeRO's and Lookahead: the first updates are
  taken as an opportunity to look who calls, and its class is timed from then on. The update is the inner one.
- DeepSpeed's engine, the optimizers of fastai and Keras and the models of spaCy, which are known by their names.

Updates that a script writes by hand are not seen. The log says so once, and what to call.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import get_ident, local
from time import perf_counter_ns
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from laggard._events import OPTIMIZER_STEP, RESUME, UPDATE, Token, identity_of
from laggard._hooks.base import Hook, around
from laggard._hooks.torch_compile_state import show_compiler
from laggard._hot_path import Timed
from laggard._part import Host
from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._report import Report
    from laggard._steps import Step

_logger = logging.getLogger(__name__)

_StepHook = Callable[[Any, Any, Any], None]
"""Of torch: called with the optimizer, and with the arguments of its step."""

_Step = tuple[int, "Token | None", int]
"""A step that runs: the id of its optimizer, the open interval, and when it began if there is none."""


#: Class and method that update the parameters, by the module that defines them.
_UPDATES = {
    "deepspeed.runtime.engine": ("DeepSpeedEngine", "_take_model_step"),
    "fastai.optimizer": ("Optimizer", "step"),
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", "apply"),
    "thinc.model": ("Model", "finish_update"),
}
#: Updates in which it is looked who calls the optimizer: a script may have several.
_SEARCHED_UPDATES = 8
#: Backward passes without a step after which the log says what is missing.
_SILENT_BACKWARDS = 100


class _Elsewhere(local):
    """Steps that run on a thread that does not train, the innermost last."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []


class OptimizerHook(Hook):
    """Uses torch's global hooks, which reach optimizers that exist already and classes that nobody knows."""

    name = "optimizer"
    signal = "optimizer"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._handles: list[Any] = []
        #: Steps that run on the thread that trains, the innermost last.
        self._running: list[_Step] = []
        self._elsewhere = _Elsewhere()
        self._step_code: CodeType | None = None
        #: Holds something for each update in which it is still to be looked who calls.
        self._searched = [True] * _SEARCHED_UPDATES
        #: Classes that were found around another optimizer.
        self._considered: set[type] = set()
        #: A step has ended, or the log has said that none does.
        self._told = False

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, which brings the optimizers, and for what updates without them."""
        named = {module: functools.partial(self._patch_named, *names) for module, names in _UPDATES.items()}
        return {"torch": self._patch, **named}

    def steps_ended(self, steps: list[Step]) -> None:
        """Take note that there are steps."""
        self._told |= bool(steps)

    def report(self, report: Report) -> None:  # noqa: ARG002 - it says in the log what is missing in the report
        """Say once that a loop has no steps."""
        backwards = self.recorder.backwards
        if not self._told and backwards >= _SILENT_BACKWARDS:
            self._told = True
            _logger.warning(
                "no optimizer step was seen in %d backward passes, so no training step is measured; "
                "try `with laggard.step():` around each step of the loop",
                backwards,
            )

    def uninstall(self) -> None:
        """Remove the global hooks."""
        super().uninstall()
        while self._handles:
            self._handles.pop().remove()

    def forked(self) -> None:
        """Forget which thread of the parent trains, and what it was at."""
        self._running.clear()

    def _patch(self, torch: ModuleType) -> None:
        traced = self.host.traced
        pre_hook, post_hook = self._step_hooks()

        # The compiler follows an optimizer's step, hooks included, so these are functions of Python. To ask it whether
        # it does would already make it compile what it else leaves alone.
        def compiled_pre_hook(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            traced.updated = True

        show_compiler(compiled_pre_hook, pre_hook)
        show_compiler(_compiled_post_hook, post_hook)
        self._step_code = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
        module = sys.modules[torch.optim.Optimizer.__module__]
        self._handles.append(module.register_optimizer_step_pre_hook(pre_hook))
        self._handles.append(module.register_optimizer_step_post_hook(post_hook))
        self.replace(torch.optim.Optimizer, "load_state_dict", self._wrap_load)

    def _patch_named(self, name: str, method: str, module: ModuleType) -> None:
        self.replace(getattr(module, name), method, functools.partial(self._time, OPTIMIZER_STEP, None))

    def _time(self, code: int, owner: type | None, step: Callable[..., Any]) -> Callable[..., Any]:
        """Time a method that updates; give a class up in whose method a backward pass is found."""
        recorder = self.recorder
        notify, give_up = self.guarded(self._notify), self.guarded(self._give_up)

        def run(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            # Without a backward pass before it is no training of torch's: Keras has other backends too.
            if not recorder.thread:
                return step(optimizer, *args, **kwargs)
            backwards = recorder.backwards
            token = recorder.begin(code | identity_of(optimizer) if owner is None else code)
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                ended = recorder.end(token)
                if owner is None:
                    if ended:
                        notify()
                elif recorder.backwards != backwards:
                    give_up(owner)

        runs = Timed(step, run)

        @functools.wraps(step)
        def timed(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            stands_in = step if sys.modules["torch"].compiler.is_compiling() else runs
            return stands_in(optimizer, *args, **kwargs)

        return timed

    def _search(self) -> None:
        """Look for a class around the optimizer whose step begins: the outermost one that is an optimizer too."""
        self._searched.pop()
        frame = inspect.currentframe()
        found: type | None = None
        while frame is not None:
            if frame.f_code.co_name == "step":
                with suppress(Exception):  # a class of the script's own is asked
                    found = self._around(frame.f_code, frame.f_globals) or found
            frame = frame.f_back
        if found is not None:
            self._considered.add(found)
            self.replace(found, "step", functools.partial(self._time, Phase.OPTIMIZER, found))

    def _around(self, code: CodeType, names: Mapping[str, Any]) -> type | None:
        """Return the class whose step this is, if it is an optimizer that torch's hooks do not reach."""
        torch = sys.modules["torch"]
        for value in list(names.values()):
            step = vars(value).get("step") if isinstance(value, type) else None
            if not isinstance(step, FunctionType) or getattr(inspect.unwrap(step), "__code__", None) is not code:
                continue
            # Torch hooks a class when its own constructor runs: Lookahead and Accelerate's optimizer never call that.
            known = value in self._considered or hasattr(step, "hooked") or issubclass(value, torch.nn.Module)
            return value if not known and callable(getattr(value, "zero_grad", None)) else None
        return None

    def _give_up(self, owner: type) -> None:
        self.restore(owner, "step")

    def _step_hooks(self) -> tuple[_StepHook, _StepHook]:
        before, after, notify = self.guarded(self._before), self.guarded(self._after), self.guarded(self._notify)
        host, running, searched = self.host, self._running, self._searched
        search = self.guarded(self._search)
        begins, ends = self.recorder.path.step_begins, self.recorder.path.step_ends

        def pre_hook(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if searched:
                search()
            if not begins(running, optimizer, OPTIMIZER_STEP):
                before(optimizer)

        def post_hook(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not ends(running, optimizer):
                after(optimizer)
            elif host.at_step is not None:
                notify()

        return pre_hook, post_hook

    def _before(self, optimizer: Any) -> None:
        recorder = self.recorder
        if not recorder.thread:
            self.host.training_evidence()
            recorder.claim()
        elif recorder.thread != get_ident() and recorder.phase == Phase.OTHER and not recorder.contested:
            recorder.claim()  # whose backward passes run on other threads trains in turns with them
        running = self._steps()
        if running:
            self._forget_raised(running)
            # A subclass that calls its parent's step fires twice.
            if any(outer == id(optimizer) for outer, _, _ in running):
                running.append((id(optimizer), None, 0))
                return
        token = recorder.begin(OPTIMIZER_STEP | identity_of(optimizer))
        started = 0
        if token is None:
            started = perf_counter_ns()
            if recorder.phase == Phase.BACKWARD:  # see below
                recorder.edge(started)
        running.append((id(optimizer), token, started))

    def _after(self, optimizer: Any) -> None:
        running = self._steps()
        if not running or running[-1][0] != id(optimizer):
            return
        _, token, started = running.pop()
        ended = self.recorder.end(token)
        if not ended and started and self.recorder.phase == Phase.BACKWARD:
            # The training thread waits in backward for autograd's thread of a device, on which this step ran.
            ended = perf_counter_ns()
            self.recorder.edge(ended)
            self.recorder.add(OPTIMIZER_STEP | identity_of(optimizer), started, ended)
        if ended:
            self._notify()

    def _notify(self) -> None:
        at_step = self.host.at_step
        if at_step is not None:
            at_step(UPDATE)

    def _steps(self) -> list[_Step]:
        return self._running if self.recorder.thread in (0, get_ident()) else self._elsewhere.steps

    def _forget_raised(self, running: list[_Step]) -> None:
        """Drop the steps that raised and so never reached their post hook: they are not on the stack any more."""
        frame = inspect.currentframe()
        alive = -1  # the step that is about to begin is on the stack too
        while frame is not None:
            alive += frame.f_code is self._step_code
            frame = frame.f_back
        if len(running) > alive:
            _, token, _ = running[alive]
            del running[alive:]
            if token is not None:
                self.recorder.phase = token[1]

    def _wrap_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def before(*_args: Any, **_kwargs: Any) -> None:
            recorder.mark(RESUME)

        return around(recorder, load, before)


def _compiled_post_hook(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    pass
