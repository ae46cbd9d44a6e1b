"""Copies from host to device: ``Tensor.to`` and ``Tensor.cuda``.

A job without a device pays nothing: both methods are left alone until the process trains and has a device in use.
From then on each call of theirs costs about 0.7 microseconds more, and a call that moved a plain tensor off the CPU is
an interval. By the host's clock that is as long as the copy holds the thread, of one from pinned memory with
``non_blocking`` the launch only; by the device's it is as long as the stream copies, nothing for one in another stream.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from laggard._hooks.backends import backends_in_use
from laggard._hooks.base import Hook
from laggard._recorder import Recorder
from laggard._steps import Step
from laggard.shared.phases import Phase

_METHODS = ("to", "cuda")
#: Names of the argument of ``Tensor.to`` that says where to.
_TARGETS = ("device", "tensor", "other")


class TransferHook(Hook):
    """Times the methods once there is a device to copy to."""

    name = "transfer"

    def steps_ended(self, steps: list[Step]) -> None:  # noqa: ARG002 - only the moment matters
        """Patch as soon as a device is in use. On the drain thread, so the process trains."""
        torch = sys.modules.get("torch")
        if self._patches or torch is None:
            return
        if backends_in_use():
            plain = (torch.Tensor, torch.nn.Parameter)
            for name in _METHODS:
                make = functools.partial(_Timed, self.recorder, plain, torch.compiler.is_compiling)
                self.replace(torch.Tensor, name, make)
            if not self.installed:  # uninstalled meanwhile, on another thread
                self.uninstall()


class _Timed:
    """A method of ``torch.Tensor`` with a clock.

    It equals what it stands in for. Torch and others look methods up in tables that they made before: with a function
    in its place, a lazy module could not be moved any more.
    """

    def __init__(
        self,
        recorder: Recorder,
        plain: tuple[type, ...],
        is_compiling: Callable[[], bool],
        method: Callable[..., Any],
    ) -> None:
        functools.update_wrapper(self, method)
        self._recorder = recorder
        self._plain = plain
        self._is_compiling = is_compiling
        self._method = method

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        return self if tensor is None else types.MethodType(self, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._method

    def __hash__(self) -> int:
        return hash(self._method)

    def __call__(self, tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        # The type comes first: asking a subclass where it is may run code of its own.
        if (
            type(tensor) not in self._plain
            or not tensor.is_cpu
            or self._is_compiling()
            or recorder.thread != get_ident()
            or not recorder.enabled
            or self._stays(args, kwargs)
        ):
            return self._method(tensor, *args, **kwargs)
        started = perf_counter_ns()
        recorder.edge(started)
        moved = self._method(tensor, *args, **kwargs)
        ended = perf_counter_ns()
        if not moved.is_cpu:
            recorder.edge(ended)
            recorder.add(Phase.H2D, started, ended)
            recorder.self_time_ns += perf_counter_ns() - ended
        return moved

    def _stays(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the call names no device but the CPU: an edge on a device's clock is not for nothing."""
        if self._method.__name__ == "cuda":
            return False
        target: Any = args[0] if args else next((kwargs[name] for name in _TARGETS if name in kwargs), None)
        if isinstance(target, (str, int)):
            return isinstance(target, str) and target.startswith("cpu")
        if type(target) in self._plain:
            target = target.device
        return getattr(target, "type", "cpu") == "cpu"  # a type of numbers names no device
