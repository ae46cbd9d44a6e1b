"""Optimizer steps, and with them the step boundary: an update ends a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook, HookHost
from laggard._recorder import UPDATE, Token
from laggard.conventions import Phase


class OptimizerHook(Hook):
    """Uses torch's global hooks, which reach optimizers that exist already and classes that nobody knows."""

    name = "optimizer"
    signal = "optimizer"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        self._handles: list[Any] = []
        #: Steps that are running, the innermost last: a subclass that calls its parent's step fires twice.
        self._running: list[tuple[int, Token | None]] = []
        self._backwards = 0

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the optimizers' base module."""
        return {"torch.optim.optimizer": self._patch}

    def uninstall(self) -> None:
        """Remove the global hooks."""
        super().uninstall()
        while self._handles:
            self._handles.pop().remove()

    def _patch(self, module: ModuleType) -> None:
        self._handles.append(module.register_optimizer_step_pre_hook(self.guarded(self._before)))
        self._handles.append(module.register_optimizer_step_post_hook(self.guarded(self._after)))

    def _before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._running and self._backwards != self.recorder.backwards:
            # A step that raised never reaches its post hook; a backward since then proves that it is over.
            self._running.clear()
            self.recorder.phase = Phase.OTHER
        self._backwards = self.recorder.backwards
        nested = any(running == id(optimizer) for running, _ in self._running)
        if not nested:
            self.host.training_evidence()
        self._running.append((id(optimizer), None if nested else self.recorder.begin(Phase.OPTIMIZER)))

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._running or self._running[-1][0] != id(optimizer):
            return
        _, token = self._running.pop()
        ended = self.recorder.end(token)
        if ended:
            self.recorder.add(UPDATE, ended, ended)
            at_step = self.host.at_step
            if at_step is not None:
                at_step(UPDATE)
