"""Collectives: which ones are issued, and how long the training thread is blocked by them.

Two views. ``ProcessGroup`` pre-hooks see every collective of any backend as it is issued, from Python or from C++;
they keep the counts (see :mod:`laggard._hooks.groups`). Where torch has no such hooks, the group's own methods are
wrapped, which Python callers go through. The time inside ``Work.wait`` and inside the operators that functional
collectives and compiled graphs wait with is communication, and so is a blocking collective that returns no ``Work``:
NCCL runs it in the current stream, since torch 2.8, and nothing waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from laggard._hooks.base import Hook, always, around, interval
from laggard._hooks.functional import WAIT_OPERATORS, WaitOperator
from laggard._hooks.groups import Groups
from laggard._hooks.operations import KINDS, METHODS, WORK_OPERATIONS, Kind
from laggard._hooks.waiting import add_wait, begin_wait, elsewhere, end_wait
from laggard._part import Host
from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._events import Token
    from laggard._report import Report
    from laggard._steps import Step

#: Identify our hooks on a process group among those of others; a second instrumentation takes the next one.
_hook_ids = itertools.count(0x1A66A4D)

#: Modules that hold `init_process_group` under its name.
_INIT_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed", "torch.distributed.device_mesh")

#: Packages of engines that serve a model: a group that they make is for that, and the process may never train.
_ENGINES = frozenset({"vllm", "sglang"})

#: Backends that return a ``Work`` whatever is asked: a post-hook has nothing to say of them.
_RETURN_WORK = frozenset({"gloo", "mpi"})

#: Waits kept between two drains; what does not fit is missing from the collectives' histogram only.
_MAX_WAITS = 8192
#: Waits that a trace shows by name.
_SLOW_WAIT_NS = 1_000_000


class CollectivesHook(Hook):
    """Watches every process group and every wait for a collective."""

    name = "collectives"
    signal = "communication"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._groups = Groups(host.recorder, host.exposure)
        self._kinds: dict[Any, Kind] = {}
        self._has_hooks = False
        self._hook_id = next(_hook_ids)
        self._waits: list[tuple[str, int]] = []
        self._reported_bytes: dict[str, int] = {}
        self._observer = self.guarded(self._after_backward)
        self._returned = self.guarded(self._waited_inside)

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch's distributed package, and for the functional collectives that only some programs load."""
        return {
            "torch.distributed": self._patch,
            "torch.distributed._functional_collectives": self._patch_functional,
        }

    @property
    def available(self) -> bool:
        """Not where collectives are issued whose waits are out of reach."""
        exposure = self.host.exposure
        # On a device a stream waits for what is issued in backward: seen at a reducer's end of backward, or in Python.
        seen = exposure.reduced or exposure.waited_in_backward
        unseen = self.recorder.device is not None and exposure.in_backward > 0 and not seen
        return self.installed and not exposure.hidden and not unseen

    def uninstall(self) -> None:
        """Undo the patches and leave the process groups."""
        super().uninstall()
        self._groups.closed = True
        # A group that is just calling our hook must not lose it: it would crash. After a failure, and on a thread other
        # than the one that trains, the hooks stay and do nothing.
        if self._has_hooks and not self._groups.failed and self.recorder.thread in (0, get_ident()):
            for watched in self._groups.watched:
                watched.group.unregister_pre_hook(self._hook_id)
                watched.group.unregister_post_hook(self._hook_id)
        self._groups.watched.clear()

    def steps_ended(self, steps: list[Step]) -> None:
        """Judge whether all exposed communication is seen."""
        self.host.exposure.steps_ended(len(steps))

    def report(self, report: Report) -> None:
        """Report waits and bytes since the last call."""
        waits = self._waits[:]
        del self._waits[: len(waits)]
        for operation, duration in waits:
            report.collective(operation, duration)
        for operation, size in self._groups.bytes.items():
            new = size - self._reported_bytes.get(operation, 0)
            if new:
                report.collective_io(operation, new)
                self._reported_bytes[operation] = size

    def state_file_opened(self, words: memoryview[int]) -> None:
        """Name the groups that were there before the state file was."""
        self._groups.describe(words)

    def _patch(self, distributed: ModuleType) -> None:
        if not distributed.is_available():
            return
        c10d = distributed.distributed_c10d
        init = c10d.init_process_group
        wrap_init = functools.cache(self._wrap_init)  # under each of its names the same object
        for name in _INIT_MODULES:
            module = sys.modules.get(name)
            if module is not None and getattr(module, "init_process_group", None) is init:
                self.replace(module, "init_process_group", wrap_init)
        # Where every kind of group is made known, or in older versions the function that most are made by.
        register = "_register_pg_in_world"
        self.replace(c10d, register if hasattr(c10d, register) else "_new_process_group_helper", self._wrap_register)
        self._has_hooks = hasattr(c10d.ProcessGroup, "register_pre_hook")
        if self._has_hooks:
            names = sys.modules["torch._C._distributed_c10d"].HookOpName.__members__
            self._kinds = {names[name]: kind for name, kind in KINDS.items() if name in names}
        else:
            for method, (name, argument) in METHODS.items():
                if hasattr(c10d.ProcessGroup, method):
                    wrap = functools.partial(self._wrap_method, kind=KINDS[name], argument=argument)
                    self.replace(c10d.ProcessGroup, method, wrap)
        self._watch_all(c10d)
        self.replace(c10d.Work, "wait", self._wrap_wait)
        self.replace(c10d.ProcessGroup, "monitored_barrier", self._wrap_monitored_barrier)

    def _patch_functional(self, _module: ModuleType) -> None:
        namespace = sys.modules["torch"].ops._c10d_functional  # noqa: SLF001 - the operators have no public name
        for name in WAIT_OPERATORS:
            packet = getattr(namespace, name, None)
            if packet is not None:
                # Called by the one from Python, by the other from compiled graphs.
                self.replace(packet, "_op", self._wrap_operator)
                self.replace(packet.default, "_op", self._wrap_operator)

    def _wrap_init(self, init: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(init)
        host = self.host

        def before(*args: Any, **kwargs: Any) -> None:
            # Before the call, which waits for all ranks: a rank that never gets past it must be visible.
            if _is_for_an_engine():
                return
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                given = {}
            host.group_evidence(_not_negative(given.get("rank")), _not_negative(given.get("world_size")))

        return around(self.recorder, init, before)

    def _wrap_register(self, register: Callable[..., Any]) -> Callable[..., Any]:
        watch_all = self.guarded(self._watch_all)

        def after(_state: Any, succeeded: bool, _result: Any) -> None:  # noqa: FBT001 - as around calls it
            if succeeded:
                watch_all(sys.modules["torch.distributed.distributed_c10d"])

        return around(self.recorder, register, always, after)

    def _watch_all(self, c10d: ModuleType) -> None:
        for group, (backend, *_) in c10d._world.pg_map.items():  # noqa: SLF001 - the one list of all groups
            watched = self._groups.add(group)
            self.observe(self.host.backward_observers, self._observer)
            if watched is not None and self._has_hooks:
                failed = functools.partial(self.host.part_failed, self)
                group.register_pre_hook(self._hook_id, self._groups.pre_hook(watched, self._kinds, failed))
                if backend not in _RETURN_WORK:
                    group.register_post_hook(self._hook_id, self._issued)

    def _wrap_method(self, method: Callable[..., Any], kind: Kind, argument: int) -> Callable[..., Any]:
        issuing = self.guarded(self._issuing)

        @functools.wraps(method)
        def issue(group: Any, *args: Any, **kwargs: Any) -> Any:
            issuing(group, kind, args[argument] if 0 <= argument < len(args) else (), args)
            work = method(group, *args, **kwargs)
            if work is None:
                self._returned()
            return work

        return issue

    def _issued(self, issued: Any) -> None:
        if not issued.async_op and issued.work is None:
            self._returned()

    def _waited_inside(self) -> None:
        """Take what ran in the current stream since a blocking collective was issued for a wait."""
        started = self._groups.pop_began()
        if not started or not self.recorder.enabled:
            return
        exposure = self.host.exposure
        if elsewhere(exposure):
            exposure.waited += 1
            self._groups.pop_blocking()
        else:
            ended = add_wait(self.recorder, exposure, started)
            self._waited(None, started, ended)
            self.recorder.self_time_ns += perf_counter_ns() - ended

    def _issuing(self, group: Any, kind: Kind, tensors: Any, arguments: tuple[Any, ...]) -> None:
        entered = perf_counter_ns()
        watched = self._groups.find(group)
        if watched is not None and self.recorder.enabled:
            blocking = not any(getattr(argument, "asyncOp", False) for argument in arguments)
            self._groups.issue(watched, kind, list(_flat(tensors)), blocking=blocking)
        self.recorder.self_time_ns += perf_counter_ns() - entered

    def _wrap_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder
        exposure = self.host.exposure

        def before(work: Any, *_args: Any, **_kwargs: Any) -> tuple[Any, Token] | None:
            if elsewhere(exposure):  # ahead of its use; who uses it waits for that stream
                exposure.waited += 1
                self._groups.pop_blocking()
                return None
            token = begin_wait(recorder)
            return None if token is None else (work, token)

        def after(state: tuple[Any, Token], _succeeded: bool, _result: Any) -> None:  # noqa: FBT001 - as around calls it
            work, token = state
            self._waited(work, token[2], end_wait(recorder, exposure, token))

        return around(recorder, wait, before, after)

    def _wrap_monitored_barrier(self, barrier: Callable[..., Any]) -> Callable[..., Any]:
        # Gloo makes it of sends and receives that no hook is told of, and it returns no work.
        begin = self.recorder.begin
        return interval(self.recorder, barrier, lambda *_args, **_kwargs: begin(int(Phase.COMMUNICATION)))

    def _wrap_operator(self, operator: Callable[..., Any]) -> Callable[..., Any]:
        tensor = sys.modules["torch"].Tensor
        return WaitOperator(operator, tensor, self.recorder, self.host.exposure, self._waited_for_tensor)

    def _waited(self, work: Any, started: int, ended: int) -> None:
        operation = self._groups.pop_blocking()
        # Older versions do not say it, nor does a work of somebody's own: then it is what was issued last.
        with contextlib.suppress(Exception):
            operation = WORK_OPERATIONS.get(work._get_op_type(), operation)  # noqa: SLF001 - torch says it nowhere else
        self._keep(operation, started, ended)

    def _waited_for_tensor(self, started: int, ended: int) -> None:
        self._keep("asynchronous", started, ended)

    def _keep(self, operation: str, started: int, ended: int) -> None:
        duration = ended - started
        # Each of them costs the drain more than all else that is known of it.
        if not self._resting and len(self._waits) < _MAX_WAITS:
            self._waits.append((operation, duration))
        if duration >= _SLOW_WAIT_NS:
            self.host.slow_collectives.append((operation, started, ended))

    def _after_backward(self, _started: int, _ended: int) -> None:
        """DDP and FSDP wait inside backward, in C++, for all that they have issued."""
        self._groups.finish_all()


def _flat(tensors: Any) -> Iterator[Any]:
    """Yield the tensors of a tensor, a list of tensors or a list of lists."""
    if isinstance(tensors, (list, tuple)):
        for part in cast("list[Any]", tensors):
            yield from _flat(part)
    else:
        yield tensors


def _not_negative(number: Any) -> int | None:
    return number if isinstance(number, int) and number >= 0 else None


def _is_for_an_engine() -> bool:
    """Return whether an engine that serves a model calls."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _ENGINES:
            return True
        frame = frame.f_back
    return False
