"""The backward pass: ``torch.autograd.backward``, which ``Tensor.backward`` and a gradient scaler call too."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook
from laggard.conventions import Phase


class BackwardHook(Hook):
    """Wraps the module attribute through which every backward pass of a training loop goes.

    The thread that calls it is the thread that trains.
    """

    name = "backward"
    signal = "backward"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, and for the compiler, which must not look into the wrapper."""
        return {"torch": self._patch, "torch._dynamo": self._hide_from_compiler}

    def _patch(self, torch: ModuleType) -> None:
        self._depth = 0
        self.replace(torch.autograd, "backward", self._wrap)

    def _wrap(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder
        host = self.host
        observers = host.backward_observers

        @functools.wraps(backward)
        def timed_backward(*args: Any, **kwargs: Any) -> Any:
            if self._depth:  # a backward inside a backward is part of the outer one
                return backward(*args, **kwargs)
            host.training_evidence()
            recorder.thread = get_ident()
            recorder.backwards += 1
            self._depth = 1
            token = recorder.begin(Phase.BACKWARD)
            try:
                return backward(*args, **kwargs)
            finally:
                self._depth = 0
                ended = recorder.end(token)
                if token is not None:
                    for observer in observers:
                        observer(token[2], ended)

        return timed_backward

    def _hide_from_compiler(self, _module: ModuleType) -> None:
        # A compiled train step breaks its graph at backward anyway; traced, the wrapper would add a break of its
        # own and never be called. Any optimizer imports the compiler, so this costs a training job nothing extra.
        torch = sys.modules["torch"]
        self.replace(torch.autograd, "backward", torch.compiler.disable)
