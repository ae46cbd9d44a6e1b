"""Optimizer steps, and with them the step boundary: an update ends a training step."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from threading import get_ident, local
from time import perf_counter_ns
from types import CodeType, ModuleType
from typing import Any

from laggard._hooks.base import Hook, HookHost
from laggard._hooks.compiler import show_compiler
from laggard._hooks.waiting import in_backward
from laggard._recorder import RESUME, UPDATE, Token
from laggard.conventions import Phase

#: A plain number is cheaper to pass than a member of an enumeration.
_OPTIMIZER = int(Phase.OPTIMIZER)


class _Running(local):
    """Steps that run on this thread, the innermost last: optimizer, open interval, begin."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, Token | None, int]] = []


class OptimizerHook(Hook):
    """Uses torch's global hooks, which reach optimizers that exist already and classes that nobody knows."""

    name = "optimizer"
    signal = "optimizer"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        self._handles: list[Any] = []
        self._running = _Running()
        self._step_code: CodeType | None = None

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, which brings the optimizers."""
        return {"torch": self._patch}

    def uninstall(self) -> None:
        """Remove the global hooks."""
        super().uninstall()
        while self._handles:
            self._handles.pop().remove()

    def _patch(self, torch: ModuleType) -> None:
        is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        before, after = self.guarded(self._before), self.guarded(self._after)
        traced = self.host.traced

        def pre_hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling():
                compiled_pre_hook(optimizer, args, kwargs)
            else:
                before(optimizer)

        def post_hook(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_compiling():
                after(optimizer)

        # The compiler follows an optimizer's step, hooks included. To ask it whether it does would already make it
        # compile what it else leaves alone.
        def compiled_pre_hook(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            traced.updated = True

        show_compiler(compiled_pre_hook, pre_hook)
        show_compiler(_compiled_post_hook, post_hook)
        self._step_code = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
        module = sys.modules[torch.optim.Optimizer.__module__]
        self._handles.append(module.register_optimizer_step_pre_hook(pre_hook))
        self._handles.append(module.register_optimizer_step_post_hook(post_hook))
        self.replace(torch.optim.Optimizer, "load_state_dict", self._wrap_load)

    def _before(self, optimizer: Any) -> None:
        recorder = self.recorder
        running = self._running.steps
        if running:
            self._forget_raised(running)
            # A subclass that calls its parent's step fires twice.
            if any(outer == id(optimizer) for outer, _, _ in running):
                running.append((id(optimizer), None, 0))
                return
        if not recorder.thread:
            self.host.training_evidence()
            recorder.thread = get_ident()
        token = recorder.begin(_OPTIMIZER)
        started = 0
        if token is None:
            started = perf_counter_ns()
            if in_backward(recorder):
                recorder.edge(started)
        running.append((id(optimizer), token, started))

    def _after(self, optimizer: Any) -> None:
        running = self._running.steps
        if not running or running[-1][0] != id(optimizer):
            return
        _, token, started = running.pop()
        ended = self.recorder.end(token)
        if not ended and started and in_backward(self.recorder):
            # The training thread waits in backward for autograd's thread of a device, on which this step ran.
            ended = perf_counter_ns()
            self.recorder.edge(ended)
            self.recorder.add(Phase.OPTIMIZER, started, ended)
        if ended:
            self.recorder.add(UPDATE, ended, ended)
            at_step = self.host.at_step
            if at_step is not None:
                at_step(UPDATE)

    def _forget_raised(self, running: list[tuple[int, Token | None, int]]) -> None:
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

        @functools.wraps(load)
        def load_state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.mark(RESUME)
            return load(optimizer, *args, **kwargs)

        return load_state_dict


def _compiled_post_hook(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    pass
