"""Keeps the compiler from compiling laggard itself.

Below a graph break of a compiled model the compiler looks at every Python frame that is entered, and those of our
hooks are among them. Compiled, they would cost seconds, warn about clocks, and see symbolic tensors. Tracing is not
touched: where a wrapper stands inside a graph it is inlined as before.

What a hook calls in turn (threads, paths, the log) is not for the compiler either. But a wrapper calls what it wraps,
and that may be the user's: it is looked at as it would be without us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from laggard._hooks.base import Hook


class TorchCompileSkipHook(Hook):
    """Marks the code of this package as not to be compiled once the compiler is there."""

    name = "torch_compile_skip"
    former_name = "compiler"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the compiler, which any optimizer imports."""
        return {"torch._dynamo": self._patch}

    def _patch(self, dynamo: ModuleType) -> None:
        frames = dynamo.eval_frame
        if not hasattr(frames, "set_code_exec_strategy"):
            return
        action, strategy = frames.FrameAction, frames.FrameExecStrategy
        alone, with_callees = strategy(action.SKIP, action.DEFAULT), strategy(action.SKIP, action.SKIP)
        package = __name__.partition(".")[0]
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package:
                for function in _functions(vars(module).values(), name):
                    # Wrappers are closures, and objects that are called.
                    wraps = function.__name__ == "__call__"
                    frames.set_code_exec_strategy(function.__code__, alone if wraps else with_callees)
                    for code in _nested(function.__code__):
                        frames.set_code_exec_strategy(code, alone)


def _functions(values: Iterable[Any], module: str) -> Iterable[FunctionType]:
    """Yield the functions and the methods of classes among ``values`` that ``module`` defines."""
    for value in values:
        if isinstance(value, property):
            yield from _functions((value.fget, value.fset), module)
        elif isinstance(value, staticmethod):
            yield from _functions((value.__func__,), module)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield value
        elif isinstance(value, type) and value.__module__ == module:
            yield from _functions(vars(value).values(), module)


def _nested(code: CodeType) -> Iterable[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
