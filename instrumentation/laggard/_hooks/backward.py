"""The backward pass: the engine that ``Tensor.backward``, ``autograd.backward`` and ``autograd.grad`` run.

Megatron-LM calls the engine directly. The functions above it stay what they are, since the compiler knows them by
identity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook
from laggard._recorder import GRADIENT
from laggard.shared.phases import Phase


class BackwardHook(Hook):
    """Puts an engine that times its runs in the place of autograd's.

    The engine itself has one instance, in C++; every object of its class in Python runs that one. The thread that
    accumulates gradients with it is the thread that trains.
    """

    name = "backward"
    signal = "backward"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch."""
        return {"torch": self._patch}

    def _patch(self, torch: ModuleType) -> None:
        self.replace(torch.autograd.Variable, "_execution_engine", self._engine)

    def _engine(self, engine: Any) -> Any:
        kind: Any = engine.__class__
        # A subclass under the same name: the compiler asks for the class of the engine.
        body = {"run_backward": self._wrap(kind.run_backward), "__module__": kind.__module__, "__slots__": ()}
        return type(kind.__name__, (kind,), body)()

    def _wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder
        host = self.host
        observers = host.backward_observers
        backward = int(Phase.BACKWARD)
        trains, begin, end = recorder.trains, recorder.begin, recorder.end
        native = recorder.native
        if native is not None:

            def evidence() -> None:
                host.training_evidence()

            return functools.update_wrapper(native.timed_backward(run, backward, GRADIENT, evidence, observers), run)
        running = False

        @functools.wraps(run)
        def timed_run(*args: Any, **kwargs: Any) -> Any:
            nonlocal running
            if running:  # a backward inside a backward is part of the outer one
                return run(*args, **kwargs)
            # `autograd.grad` may be part of a model, also where nothing is trained.
            accumulates = kwargs.get("accumulate_grad", False)
            if accumulates and trains():
                host.training_evidence()
            running = True
            token = begin(backward if accumulates else GRADIENT)
            try:
                return run(*args, **kwargs)
            finally:
                running = False
                ended = end(token)
                if token is not None and accumulates:
                    for observer in observers:
                        observer(token[2], ended)

        return timed_run
