"""Collectives: which ones are issued, and how long the training thread is blocked by them.

Two views. ``ProcessGroup`` pre-hooks see every collective of any backend as it is issued, from Python or from C++;
they keep the count that the state file shows, so that a rank that did not join can be told from those that wait.
``Work.wait`` is where a Python caller is blocked; the time inside it is communication.
"""

from __future__ import annotations

import functools
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any

from laggard._hooks.base import Hook, HookHost
from laggard.conventions import Phase
from laggard.statefile import GROUP_WORDS, GROUPS, MAX_GROUPS, PROGRESS, pack

if TYPE_CHECKING:
    from laggard._report import Report

#: Identifies our hooks on a process group among those of others.
_HOOK_ID = 0x1A66A4D

#: Names of operations in metrics, by torch's name; variants of one operation share a name.
_OPERATIONS = {
    "BROADCAST": "broadcast",
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce",
    "REDUCE": "reduce",
    "ALLGATHER": "all_gather",
    "ALLGATHER_BASE": "all_gather",
    "ALLGATHER_COALESCED": "all_gather",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "REDUCE_SCATTER_BASE": "reduce_scatter",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "BARRIER": "barrier",
    "SCATTER": "scatter",
    "GATHER": "gather",
}

#: Modules that hold `init_process_group` under its name.
_INIT_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed", "torch.distributed.device_mesh")

#: Waits kept between two drains; what does not fit is missing from the collectives' histogram only.
_MAX_WAITS = 8192


class _Group:
    """One process group: its slot in the state file and its collectives so far."""

    __slots__ = ("group", "slot", "started", "word")

    def __init__(self, group: Any, slot: int) -> None:
        self.group = group
        self.slot = slot
        self.started = 0
        self.word = GROUPS + slot * GROUP_WORDS


class CollectivesHook(Hook):
    """Watches every process group and every wait for a collective."""

    name = "collectives"
    signal = "communication"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        self._groups: list[_Group] = []
        #: Pre-hooks that are running.
        self._issuing = 0
        #: The operation and the group of the newest blocking collective, whose wait comes next.
        self._blocking: tuple[str, _Group | None] = ("asynchronous", None)
        self._waits: list[tuple[str, int]] = []
        self._bytes: dict[str, int] = {}
        self._reported_bytes: dict[str, int] = {}
        self._observer = self.guarded(self._after_backward)

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch's distributed package."""
        return {"torch.distributed": self._patch}

    def uninstall(self) -> None:
        """Undo the patches and leave the process groups."""
        super().uninstall()
        if self._observer in self.host.backward_observers:
            self.host.backward_observers.remove(self._observer)
        if self._issuing:
            return  # a pre-hook that is unregistered while it runs takes the process down; this is called once more
        while self._groups:
            self._groups.pop().group.unregister_pre_hook(_HOOK_ID)

    def report(self, report: Report) -> None:
        """Report waits and bytes since the last call."""
        waits = self._waits[:]
        del self._waits[: len(waits)]
        for operation, duration in waits:
            report.collective(operation, duration)
        for operation, size in list(self._bytes.items()):
            report.collective_io(operation, size - self._reported_bytes.get(operation, 0))
            self._reported_bytes[operation] = size

    def _patch(self, distributed: ModuleType) -> None:
        if not distributed.is_available():
            return
        c10d = distributed.distributed_c10d
        init = c10d.init_process_group
        for name in _INIT_MODULES:
            module = sys.modules.get(name)
            if module is not None and getattr(module, "init_process_group", None) is init:
                self.replace(module, "init_process_group", self._wrap_init)
        if hasattr(c10d.ProcessGroup, "register_pre_hook"):
            # Where every kind of group is made known, or in older versions the function that most are made by.
            register = "_register_pg_in_world"
            self.replace(
                c10d, register if hasattr(c10d, register) else "_new_process_group_helper", self._wrap_register
            )
            self._watch_all(c10d)
            self.host.backward_observers.append(self._observer)
        self.replace(c10d.Work, "wait", self._wrap_wait)

    def _wrap_init(self, init: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(init)
        host = self.host

        @functools.wraps(init)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            # Before the call, which waits for all ranks: a rank that never gets past it must be visible.
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                given = {}
            host.training_evidence(_not_negative(given.get("rank")), _not_negative(given.get("world_size")))
            return init(*args, **kwargs)

        return init_process_group

    def _wrap_register(self, register: Callable[..., Any]) -> Callable[..., Any]:
        watch_all = self.guarded(self._watch_all)

        @functools.wraps(register)
        def register_group(*args: Any, **kwargs: Any) -> Any:
            result = register(*args, **kwargs)
            watch_all(sys.modules["torch.distributed.distributed_c10d"])
            return result

        return register_group

    def _watch_all(self, c10d: ModuleType) -> None:
        known = [watched.group for watched in self._groups]
        for group in c10d._world.pg_map:  # noqa: SLF001 - the one list of all groups
            if not any(group is other for other in known):
                self._watch(group)

    def _watch(self, group: Any) -> None:
        watched = _Group(group, len(self._groups))
        self._groups.append(watched)
        words = self.recorder.words
        if words is not None:
            self._describe(watched, words)
        before = self.guarded(functools.partial(self._before, watched))

        def pre_hook(issued: Any) -> None:
            self._issuing += 1
            try:
                before(issued)
            finally:
                self._issuing -= 1

        group.register_pre_hook(_HOOK_ID, pre_hook)

    def state_file_opened(self, words: memoryview[int]) -> None:
        """Name the groups that were there before the state file was."""
        for watched in self._groups:
            self._describe(watched, words)

    def _describe(self, watched: _Group, words: memoryview[int]) -> None:
        if watched.slot < MAX_GROUPS:
            # The same on all ranks of the group, and never 0, which means an empty slot.
            words[watched.word] = zlib.crc32(watched.group.group_name.encode()) + 1

    def _before(self, watched: _Group, issued: Any) -> None:
        """Note a collective that is about to be issued, on whatever thread issues it."""
        entered = perf_counter_ns()
        operation = _OPERATIONS.get(issued.name.name)
        if operation is None or not self.recorder.enabled:
            return  # point to point: its counts differ between ranks by design
        watched.started += 1
        words = self.recorder.words
        if words is not None and watched.slot < MAX_GROUPS:
            words[watched.word + 1] = pack(int(issued.name), watched.started)
            words[PROGRESS] += 1
        size = sum(tensor.numel() * tensor.element_size() for tensor in issued.input_tensors)
        self._bytes[operation] = self._bytes.get(operation, 0) + size
        if not issued.async_op:
            self._blocking = (operation, watched)
        self.recorder.self_time_ns += perf_counter_ns() - entered

    def _wrap_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        @functools.wraps(wait)
        def timed_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            token = recorder.begin(Phase.COMMUNICATION)
            try:
                return wait(work, *args, **kwargs)
            finally:
                ended = recorder.end(token)
                if token is not None:
                    self._waited(ended - token[2])

        return timed_wait

    def _waited(self, duration: int) -> None:
        (operation, watched), self._blocking = self._blocking, ("asynchronous", None)
        if watched is not None:
            self._finished(watched)
        if len(self._waits) < _MAX_WAITS:
            self._waits.append((operation, duration))

    def _after_backward(self, _started: int, _ended: int) -> None:
        """DDP and FSDP wait inside backward, in C++, for all that they have issued."""
        for watched in self._groups:
            self._finished(watched)

    def _finished(self, watched: _Group) -> None:
        """Collectives of a group complete in order: the one that was waited for was the newest."""
        words = self.recorder.words
        if words is not None and watched.slot < MAX_GROUPS:
            words[watched.word + 2] = watched.started


def _not_negative(number: Any) -> int | None:
    return number if isinstance(number, int) and number >= 0 else None
