"""Checkpoints: ``torch.save`` and ``torch.load``, ``torch.distributed.checkpoint``, and safetensors' functions.

What counts, since these functions are used for much else:

- Not what goes to or comes from memory (``BytesIO``): pickling of tensors and copies for other processes do that.
- Not what happens inside a batch fetch, a forward, a backward or an optimizer step: a data set that loads its
  samples with ``torch.load`` is data loading.
- A load only when it returns a mapping or a module: a state dict or a model, not a shard of tensors.
- Of nested calls the outermost.

Only the training thread is measured. A save on another thread, to a path, moves the time of the last save.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from threading import get_ident, main_thread
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from laggard import conventions as names
from laggard._hooks.base import Hook, HookHost
from laggard._recorder import RESUME
from laggard.conventions import Phase

if TYPE_CHECKING:
    from laggard._report import Report

_Operation = Literal["save", "load"]

#: Phases in which a call may be a checkpoint: between the parts of a step, and where the script says so.
_BETWEEN = frozenset({Phase.OTHER, Phase.EVALUATION, Phase.CHECKPOINT})
#: Modules that hold the functions of torch.distributed.checkpoint under their names.
_DISTRIBUTED = (
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.checkpoint.state_dict_loader",
)
_DISTRIBUTED_FUNCTIONS: dict[str, _Operation] = {"save": "save", "async_save": "save", "load": "load"}
#: Checkpoints kept until they are reported; a process that never trains reports none.
_MAX_PENDING = 256


class CheckpointHook(Hook):
    """Times the functions by which checkpoints are written and read."""

    name = "checkpoint"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        self._running = False
        self._finished: list[tuple[_Operation, int]] = []
        self._last_save = 0.0
        self._reported_save = 0.0
        self._is_compiling: Callable[[], bool] = bool
        self._module_class: type = type(None)

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, its distributed checkpoints and safetensors."""
        return {
            "torch": self._patch_torch,
            "torch.distributed.checkpoint": self._patch_distributed,
            "safetensors.torch": self._patch_safetensors,
        }

    def report(self, report: Report) -> None:
        """Report the checkpoints since the last call."""
        finished = self._finished[:]
        del self._finished[: len(finished)]
        for operation, duration in finished:
            report.measure(names.CHECKPOINT_DURATION, duration * 1e-9, operation)
        if self._last_save != self._reported_save:
            self._reported_save = self._last_save
            report.measure(names.CHECKPOINT_LAST_SAVE, self._reported_save)

    def _patch_torch(self, torch: ModuleType) -> None:
        self._is_compiling = torch.compiler.is_compiling
        self._module_class = torch.nn.Module
        for owner in (torch, torch.serialization):
            self.replace(owner, "save", functools.partial(self._wrap, "save", _second))
            self.replace(owner, "load", functools.partial(self._wrap, "load", _first))

    def _patch_distributed(self, _package: ModuleType) -> None:
        for module in filter(None, map(sys.modules.get, _DISTRIBUTED)):
            for name, operation in _DISTRIBUTED_FUNCTIONS.items():
                if hasattr(module, name):
                    self.replace(module, name, functools.partial(self._wrap, operation, _nowhere))

    def _patch_safetensors(self, module: ModuleType) -> None:
        self.replace(module, "save_file", functools.partial(self._wrap, "save", _nowhere))
        self.replace(module, "load_file", functools.partial(self._wrap, "load", _nowhere))

    def _wrap(
        self,
        operation: _Operation,
        place: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        call: Callable[..., Any],
    ) -> Callable[..., Any]:
        recorder = self.recorder
        after = self.guarded(self._after)

        @functools.wraps(call)
        def checkpoint(*args: Any, **kwargs: Any) -> Any:
            if self._is_compiling() or not recorder.enabled:
                return call(*args, **kwargs)
            where = place(args, kwargs)
            # Before the first backward no thread is known to train, and a script is restored by its main one.
            if get_ident() != (recorder.thread or main_thread().ident):
                result = call(*args, **kwargs)
                # An open file may be one of many that a writer of distributed checkpoints fills at a time.
                if operation == "save" and (where is None or isinstance(where, (str, os.PathLike))):
                    after(operation, 0, result)
                return result
            if self._running or recorder.phase not in _BETWEEN or isinstance(where, io.BytesIO):
                return call(*args, **kwargs)
            self._running = True
            # What a load is turns out afterwards.
            token = recorder.begin(Phase.CHECKPOINT) if operation == "save" else None
            started = perf_counter_ns()
            recorder.edge(started)
            try:
                result = call(*args, **kwargs)
            finally:
                self._running = False
                recorder.end(token)
            after(operation, started, result)
            return result

        return checkpoint

    def _after(self, operation: _Operation, started: int, result: Any) -> None:
        """Note a call that succeeded; without a start it was in the background."""
        ended = perf_counter_ns()
        if operation == "load":
            if result is not None and not isinstance(result, (Mapping, self._module_class)):
                return
            self.recorder.edge(ended)
            self.recorder.add(Phase.CHECKPOINT, started, ended)
            self.recorder.add(RESUME, ended, ended)
        if started and len(self._finished) < _MAX_PENDING:
            self._finished.append((operation, ended - started))
        if operation == "save":
            # What async_save returns is done when the background part is: a future, or a pair of them.
            upload: Any = getattr(result, "upload_completion", result)
            if hasattr(upload, "add_done_callback"):
                upload.add_done_callback(self.guarded(self._uploaded))
            else:
                self._last_save = time.time()

    def _uploaded(self, upload: Any) -> None:
        if not upload.cancelled() and upload.exception() is None:
            self._last_save = time.time()


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("f")


def _second(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("f")


def _nowhere(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Stand for the functions that never work in memory."""
