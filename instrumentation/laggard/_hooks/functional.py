"""Operators that wait for functional collectives: those of tensor parallelism, DTensor and compiled graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from laggard._hooks.exposure import Exposure
from laggard._hooks.waiting import begin_wait, end_wait
from laggard._recorder import Recorder

#: By their name in torch's namespace ``_c10d_functional``.
WAIT_OPERATORS = ("wait_tensor", "wait_tensors")


class WaitOperator:
    """Stands in for the C++ function behind a torch operator. Compilers know the operator and never look at this."""

    __slots__ = ("_exposure", "_operator", "_recorder", "_tensor", "_waited")

    def __init__(
        self,
        operator: Callable[..., Any],
        tensor: type,
        recorder: Recorder,
        exposure: Exposure,
        waited: Callable[[int, int], None],
    ) -> None:
        self._operator = operator
        self._tensor = tensor
        self._recorder = recorder
        self._exposure = exposure
        self._waited = waited

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        if isinstance(first, list):
            first = next(iter(cast("list[Any]", first)), None)
        # Anything but a plain tensor is being traced, or comes back here for the tensor inside.
        if type(first) is not self._tensor:
            return self._operator(*args, **kwargs)
        token = begin_wait(self._recorder)
        try:
            return self._operator(*args, **kwargs)
        finally:
            ended = end_wait(self._recorder, self._exposure, token)
            if token is not None:
                self._waited(token[2], ended)

    def __hash__(self) -> int:
        # An operator's hash is that of its function, and torch keeps tables of operators.
        return hash(self._operator)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)
