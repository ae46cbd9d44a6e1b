"""Checkpoints: ``torch.save`` and ``torch.load``, distributed checkpoints, safetensors, torch_checkpointing and pickle.

What counts, since these functions are used for much else:

- Not what happens inside a batch fetch, a forward, a backward or an optimizer step: a data set that loads its
  samples with ``torch.load`` is data loading.
- A save into memory (``BytesIO``, ``safetensors.torch.save``) or by pickle only when it is the state of a module or of
  an optimizer. Copies for other processes go through memory too.
- A load only when it returns a mapping or a module: a state dict or a model, not a shard of tensors. Not from memory.
- Of nested calls the outermost.

A checkpoint ends when training goes on. The files that are written until then are one checkpoint, with what lies
between them, waits for peers included. A buffer in memory, or a file of fsspec's, is written out by its owner. Until it
is gone, or until training goes on, that is the checkpoint too.

Only the training thread is measured. A save on another thread, to a path, moves the time of the last save.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from threading import get_ident, main_thread
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from weakref import ref

from laggard._events import RESUME, Token
from laggard._hooks.base import Hook, around
from laggard._part import Host
from laggard.shared import metrics as names
from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._report import Report

_Operation = Literal["save", "load"]
_Held = _Operation | Literal["wait"]
"""What holds the training thread: a wait is for a save in the background, and a part of that."""

#: Phases in which a call may be a checkpoint: between the parts of a step, and where the script says so.
_BETWEEN = frozenset({Phase.OTHER, Phase.EVALUATION, Phase.CHECKPOINT})
#: Phases in which training has not gone on: a checkpoint waits for peers and copies from the device.
_WITHIN = frozenset({Phase.CHECKPOINT, Phase.COMMUNICATION, Phase.H2D})
#: Packages of distributed checkpoints, and the modules that hold their functions under the same names.
_DISTRIBUTED = {
    "torch.distributed.checkpoint": (
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.state_dict_saver",
        "torch.distributed.checkpoint.state_dict_loader",
    ),
    "megatron.core.dist_checkpointing": (
        "megatron.core.dist_checkpointing",
        "megatron.core.dist_checkpointing.serialization",
    ),
}
_DISTRIBUTED_FUNCTIONS: dict[str, _Operation] = {"save": "save", "async_save": "save", "load": "load"}
#: torch_checkpointing, whose saves are asynchronous unless the script says otherwise: its class by the class's module.
_MANAGER = ("torch_checkpointing.checkpoint_manager", "CheckpointManager")
#: safetensors' own functions, the inner one for those who took the outer ones before they were patched.
_SAFETENSORS: dict[str, _Operation] = {"save_file": "save", "serialize_file": "save", "load_file": "load"}
#: What the system writes out by itself.
_FILES = (io.FileIO, io.BufferedWriter, io.BufferedRandom)
#: How deep a checkpoint's mappings and lists are searched for state, how many entries of each, and of all at a depth.
_DEPTH, _ENTRIES, _LEVEL = 4, 64, 256
#: Checkpoints kept until they are reported; a process that never trains reports none.
_MAX_PENDING = 256


class _Save:
    """A checkpoint that is being written, file by file."""

    __slots__ = ("buffer", "ended", "held_back", "reported", "started", "whole")

    def __init__(self, started: int) -> None:
        self.started = started
        self.ended = started
        #: One recorded interval covers it.
        self.whole = True
        #: What was written to and has not been written out, as far as that can be told.
        self.buffer: ref[Any] | None = None
        self.held_back = False
        #: Up to here its time is reported.
        self.reported = started


class _Call(NamedTuple):
    """A call that may be a checkpoint, or on another thread the end of one: then it has no start."""

    started: int = 0
    token: Token | None = None
    buffer: Any = None
    elsewhere: bool = False


class CheckpointHook(Hook):
    """Times the functions by which checkpoints are written and read."""

    name = "checkpoint"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._running = False
        self._finished: list[tuple[_Operation, int]] = []
        self._last_save = 0.0
        self._reported_save = 0.0
        self._is_compiling: Callable[[], bool] = bool
        self._module_class: type = type(None)
        self._tensor_class: type = type(None)
        self._parameter_class: type = type(None)
        #: The newest checkpoint, until training goes on.
        self._save: _Save | None = None
        #: Stands in for what the recorder calls at each edge; and that, if there is one.
        self._watch = self._make_watch()
        self._device: Callable[[int], None] | None = None

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch, its distributed checkpoints, safetensors and torch_checkpointing."""
        return {
            "torch": self._patch_torch,
            **{package: functools.partial(self._patch_distributed, names) for package, names in _DISTRIBUTED.items()},
            "safetensors.torch": self._patch_safetensors,
            _MANAGER[0]: self._patch_manager,
        }

    def uninstall(self) -> None:
        """Undo the patches and watch no edge."""
        super().uninstall()
        self._unwatch()

    def forked(self) -> None:
        """Forget the parent's checkpoint."""
        self._unwatch()

    def report(self, report: Report) -> None:
        """Report the checkpoints since the last call."""
        save = self._save
        if save is not None and not self._running:
            # Not to be lost where the process ends. The owner of a buffer may be about to write it.
            if save.buffer is None or save.held_back:
                self._finish_save(save)
            save.held_back = True
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
        self._tensor_class, self._parameter_class = torch.Tensor, torch.nn.Parameter
        # Under each of its names a function is one object: it is pickled by one of them.
        save = functools.cache(functools.partial(self._wrap, "save", _second))
        load = functools.cache(functools.partial(self._wrap, "load", _first))
        for owner in (torch, torch.serialization):
            self.replace(owner, "save", save)
            self.replace(owner, "load", load)
        dump = functools.cache(functools.partial(self._wrap, "save", _second, of_anything=True))
        for owner in (pickle, sys.modules["_pickle"]):
            self.replace(owner, "dump", dump)

    def _patch_distributed(self, modules: tuple[str, ...], _package: ModuleType) -> None:
        for name, operation in _DISTRIBUTED_FUNCTIONS.items():
            wrap = functools.cache(functools.partial(self._wrap, operation, _nowhere))
            for module in filter(None, map(sys.modules.get, modules)):
                if hasattr(module, name):
                    self.replace(module, name, wrap)

    def _patch_safetensors(self, module: ModuleType) -> None:
        for name, operation in _SAFETENSORS.items():
            if hasattr(module, name):
                self.replace(module, name, functools.partial(self._wrap, operation, _nowhere))
        self.replace(module, "save", functools.partial(self._wrap, "save", _nowhere, of_anything=True))

    def _patch_manager(self, module: ModuleType) -> None:
        manager = getattr(module, _MANAGER[1])
        self.replace(manager, "save", functools.partial(self._wrap, "save", _nowhere))
        self.replace(manager, "load", functools.partial(self._wrap, "load", _nowhere))

    def _wrap(
        self,
        operation: _Held,
        place: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        call: Callable[..., Any],
        *,
        of_anything: bool = False,
    ) -> Callable[..., Any]:
        """Time a function; with ``of_anything`` it is used for much else, and counts where it saves state."""
        recorder = self.recorder
        took = self.guarded(self._after)

        def before(*args: Any, **kwargs: Any) -> _Call | None:
            if self._is_compiling() or not recorder.enabled:
                return None
            where = place(args, kwargs)
            # Before the first backward no thread is known to train, and a script is restored by its main one.
            if get_ident() != (recorder.thread or main_thread().ident):
                # An open file may be one of many that a writer of distributed checkpoints fills at a time.
                elsewhere = operation == "save" and (where is None or isinstance(where, (str, os.PathLike)))
                return _Call(elsewhere=True) if elsewhere and not of_anything else None
            unsure = of_anything or isinstance(where, io.BytesIO)
            if (
                self._running
                or recorder.phase not in _BETWEEN
                or (unsure and not (operation == "save" and self._saves_state(args, kwargs)))
            ):
                return None
            buffer = where if hasattr(where, "write") and not isinstance(where, _FILES) else None
            # What a load is turns out afterwards; it ends a save.
            started = perf_counter_ns()
            if operation == "load":
                recorder.edge(started)
            self._running = True
            token = recorder.begin(Phase.CHECKPOINT) if operation != "load" else None
            return _Call(started if token is None else token[2], token, buffer)

        def after(made: _Call, succeeded: bool, result: Any) -> None:  # noqa: FBT001 - as around calls it
            ended = 0
            if not made.elsewhere:
                ended = recorder.end(made.token)
                self._running = False
            if succeeded:
                took(operation, made.started, ended, result, made.buffer)

        return around(recorder, call, before, after)

    def _after(
        self,
        operation: _Held,
        started: int,
        ended: int,
        result: Any,
        buffer: Any = None,
    ) -> None:
        """Note a call that succeeded; without a start it was in the background."""
        if operation == "load":
            self._loaded(started, result)
            return
        if started:
            self._wrote(started, ended or perf_counter_ns(), buffer)
        if operation == "wait":
            return
        # What async_save returns is done when the background part is: a future, or a pair of them.
        staging: Any = getattr(result, "staging_completion", None)
        upload: Any = getattr(result, "upload_completion", result)
        if hasattr(staging, "add_done_callback"):
            self._follow(staging)
        if hasattr(upload, "add_done_callback"):
            self._follow(upload)
            upload.add_done_callback(self.guarded(self._uploaded))
        else:
            self._last_save = time.time()

    def _follow(self, part: Any) -> None:
        """Time who waits for a part of a save in the background, until it is done."""
        self.replace(part, "result", functools.partial(self._wrap, "wait", _nowhere))
        part.add_done_callback(self.guarded(self._done))

    def _done(self, part: Any) -> None:
        self.restore(part, "result")

    def _loaded(self, started: int, result: Any) -> None:
        if result is not None and not isinstance(result, (Mapping, self._module_class)):
            return
        ended = perf_counter_ns()
        self.recorder.edge(ended)
        self.recorder.add(Phase.CHECKPOINT, started, ended)
        self.recorder.add(RESUME, ended, ended)
        self._finish("load", ended - started)

    def _wrote(self, started: int, ended: int, buffer: Any) -> None:
        """Take a file into the checkpoint that is being written."""
        save = self._save
        if save is None:
            save = self._save = _Save(started)
            recorder = self.recorder
            self._device, recorder.device = recorder.device, self._watch
        else:
            save.whole = False
        save.ended = ended
        save.buffer = None
        if buffer is not None:
            with suppress(TypeError):  # not every class has references that are weak
                save.buffer = ref(buffer, self.guarded(self._let_go))

    def _let_go(self, buffer: ref[Any]) -> None:
        """Take note that a buffer is gone: what was in it is written."""
        save = self._save
        if save is not None and save.buffer is buffer and get_ident() == (self.recorder.thread or main_thread().ident):
            save.ended = perf_counter_ns()
            save.whole = False
            save.buffer = None
            if self._device is not None:
                self._device(save.ended)

    def _make_watch(self) -> Callable[[int], None]:
        at_edge = self.guarded(self._at_edge)

        def watch(at: int) -> None:
            device = self._device
            if device is not None:
                device(at)  # what it raises is for the recorder, as it would be without us
            at_edge(at)

        return watch

    def _at_edge(self, at: int) -> None:
        """End the checkpoint where training goes on."""
        save = self._save
        if save is None:
            return
        if save.buffer is not None:
            save.ended = at
            save.whole = False
            save.buffer = None
        if self._running or self.recorder.phase in _WITHIN:
            return
        self._unwatch()
        if not save.whole:
            self.recorder.add(Phase.CHECKPOINT, save.started, save.ended)
        self._finish_save(save)

    def _unwatch(self) -> None:
        recorder = self.recorder
        self._save = None
        if recorder.device is self._watch:
            recorder.device = self._device
        self._device = None

    def _finish_save(self, save: _Save) -> None:
        since, save.reported = save.reported, save.ended
        if save.ended > since:
            self._finish("save", save.ended - since)

    def _finish(self, operation: _Operation, duration: int) -> None:
        if len(self._finished) < _MAX_PENDING:
            self._finished.append((operation, duration))

    def _saves_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        with suppress(Exception):  # a mapping of the script's own is asked
            return self._is_state(args[0] if args else kwargs.get("obj", kwargs.get("tensors")))
        return False

    def _is_state(self, saved: Any) -> bool:
        """Return whether this is or holds the state of a module or of an optimizer, by its form."""
        level: list[Any] = [saved]
        for depth in range(_DEPTH + 1):
            inside: list[Any] = []
            for value in level:
                if isinstance(value, (self._module_class, self._parameter_class)):
                    return True
                if isinstance(value, Mapping):
                    mapping = cast("Mapping[Any, Any]", value)
                    if hasattr(mapping, "_metadata") or "param_groups" in mapping:
                        return True
                    entries = list(islice(mapping.items(), _ENTRIES))
                    if any(isinstance(entry, self._tensor_class) and "." in str(name) for name, entry in entries):
                        return True
                    inside += [entry for _, entry in entries]
                elif isinstance(value, (list, tuple)) and depth:
                    inside += islice(cast("Iterable[Any]", value), _ENTRIES)
            level = inside[:_LEVEL]
        return False

    def _uploaded(self, upload: Any) -> None:
        if not upload.cancelled() and upload.exception() is None:
            self._last_save = time.time()


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("f")


def _second(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("f")


def _nowhere(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Stand for the functions that never work in memory."""
