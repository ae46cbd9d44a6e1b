"""The backward pass: the engine that ``Tensor.backward``, ``autograd.backward`` and ``autograd.grad`` run.

Megatron-LM calls the engine directly. The functions above it stay what they are, since the compiler knows them by
identity.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from laggard._events import GRADIENT
from laggard._hooks.base import Hook
from laggard._part import Host
from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._report import Report

_logger = logging.getLogger(__name__)


class BackwardHook(Hook):
    """Puts an engine that times its runs in the place of autograd's.

    The engine itself has one instance, in C++; every object of its class in Python runs that one. The thread that
    accumulates gradients with it is the thread that trains. Of two that do so at once one is, until it rests.
    """

    name = "backward"
    signal = "backward"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._told = False

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch."""
        return {"torch": self._patch}

    def report(self, report: Report) -> None:  # noqa: ARG002 - it says in the log what is missing in the report
        """Say once that not all of the process's training is measured."""
        if self.recorder.contested and not self._told:
            self._told = True
            _logger.warning(
                "several threads of this process train at once: only one of them is measured at a time; "
                "train in processes to have each measured"
            )

    def _patch(self, torch: ModuleType) -> None:
        self.replace(torch.autograd.Variable, "_execution_engine", self._engine)

    def _engine(self, engine: Any) -> Any:
        kind: Any = engine.__class__
        # A subclass under the same name: the compiler asks for the class of the engine. What is bound already is called
        # with the very tuple and dictionary of its caller.
        run = staticmethod(self._wrap(engine.run_backward))
        body = {"run_backward": run, "__module__": kind.__module__, "__slots__": ()}
        return type(kind.__name__, (kind,), body)()

    def _wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        host = self.host

        def evidence() -> None:
            host.training_evidence()

        timed = self.recorder.path.timed_backward(run, Phase.BACKWARD, GRADIENT, evidence, host.backward_observers)
        return functools.update_wrapper(timed, run)
