"""Keeps the compiler from compiling laggard itself.

Below a graph break of a compiled model the compiler looks at every Python frame that is entered, and those of our
hooks are among them. Compiled, they would cost seconds, warn about clocks, and see symbolic tensors. Tracing is not
touched: where a wrapper stands inside a graph it is inlined as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from laggard._hooks.base import Hook


class CompilerHook(Hook):
    """Marks the code of this package as not to be compiled once the compiler is there."""

    name = "compiler"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the compiler, which any optimizer imports."""
        return {"torch._dynamo": self._patch}

    def _patch(self, dynamo: ModuleType) -> None:
        skip: Callable[[CodeType], None] | None = getattr(dynamo.eval_frame, "skip_code", None)
        if skip is None:
            return
        package = __name__.partition(".")[0]
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package:
                for code in _code(vars(module).values(), name):
                    skip(code)


def _code(values: Iterable[Any], module: str) -> Iterable[CodeType]:
    """Yield the code of the functions and classes among ``values`` that ``module`` defines, closures included."""
    for value in values:
        if isinstance(value, property):
            yield from _code((value.fget,), module)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield from _nested(value.__code__)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _code(vars(value).values(), module)


def _nested(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
