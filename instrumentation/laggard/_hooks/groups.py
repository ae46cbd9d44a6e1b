"""Process groups and what is issued on them: counts for the state file, and bytes.

By the counts a rank that did not join a collective can be told from those that wait in it.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from laggard._hooks.exposure import Exposure
from laggard._hooks.operations import KINDS, Kind
from laggard._hooks.waiting import in_backward
from laggard._recorder import Recorder
from laggard.shared.phases import Phase
from laggard.shared.statefile import GROUP_WORDS, GROUPS, MAX_GROUPS, PROGRESS, pack

#: Modules of torch that never hold what they issue: native code that they call waits for it. DDP's constructor and
#: FSDP's compare and broadcast parameters that way, and the second forward of DDP its new buckets.
_WAITING_INSIDE = frozenset({"torch.nn.parallel.distributed", "torch.distributed.utils"})


class Group:
    """One process group: its slot in the state file and its collectives so far."""

    __slots__ = ("group", "slot", "started", "word")

    def __init__(self, group: Any, slot: int) -> None:
        self.group = group
        self.slot = slot
        self.started = 0
        self.word = GROUPS + slot * GROUP_WORDS


class Groups:
    """All process groups of this process. Everything but the report runs where collectives are issued."""

    def __init__(self, recorder: Recorder, exposure: Exposure) -> None:
        self._recorder = recorder
        self._exposure = exposure
        self.watched: list[Group] = []
        #: Nothing is noted any more; and whether that is because noting it failed.
        self.closed = False
        self.failed = False
        self.bytes = {operation: 0 for operation, _ in KINDS.values()}
        #: The newest blocking collective, whose wait comes next, and its group.
        self.blocking: tuple[str, Group | None] = ("asynchronous", None)
        #: Edge before the newest call, if that is a blocking collective, and the thread that issued it.
        self._began = (0, 0)

    def add(self, group: Any) -> Group | None:
        """Watch a group; ``None`` if it is watched already."""
        if self.find(group) is not None:
            return None
        watched = Group(group, len(self.watched))
        self.watched.append(watched)
        words = self._recorder.words
        if words is not None:
            self._describe(watched, words)
        return watched

    def find(self, group: Any) -> Group | None:
        """Return what is known of a group."""
        # By identity: there are few of them.
        return next((watched for watched in self.watched if watched.group is group), None)

    def describe(self, words: memoryview[int]) -> None:
        """Name the groups that were there before the state file was."""
        for watched in self.watched:
            self._describe(watched, words)

    def _describe(self, watched: Group, words: memoryview[int]) -> None:
        if watched.slot < MAX_GROUPS:
            # The same on all ranks of the group, and never 0, which means an empty slot.
            words[watched.word] = zlib.crc32(watched.group.group_name.encode()) + 1

    def issue(self, watched: Group, kind: Kind, tensors: Any, *, blocking: bool) -> None:
        """Note a collective that is about to be issued, on whatever thread issues it."""
        recorder = self._recorder
        operation, code = kind
        watched.started += 1
        words = recorder.words
        if words is not None and watched.slot < MAX_GROUPS:
            words[watched.word + 1] = pack(code, watched.started)
            recorder.progress += 1
            words[PROGRESS] = recorder.progress
        size = 0
        for tensor in tensors:
            size += tensor.nbytes
        self.bytes[operation] += size
        if in_backward(recorder):
            # In the stream of the device, all gradients of the bucket are ready here.
            self._exposure.in_backward += 1
            self._exposure.issued_at = perf_counter_ns()
            recorder.edge(self._exposure.issued_at)
            self._began = (self._exposure.issued_at, get_ident()) if blocking else (0, 0)
            return
        if recorder.thread and recorder.thread != get_ident():
            return
        phase = recorder.phase
        # A call that returned a Work, or failed, has left its own behind.
        self._began = (0, 0)
        if blocking:
            self.blocking = (operation, watched)
            if phase != Phase.COMMUNICATION:
                self._began = perf_counter_ns(), get_ident()
                recorder.edge(self._began[0])
        if phase == Phase.BACKWARD:
            self._exposure.in_backward += 1
        elif phase != Phase.COMMUNICATION and recorder.thread and not _waited_for_inside():
            # Issued neither inside a wait that is being timed nor before training.
            self._exposure.issued += 1

    def finish(self, watched: Group) -> None:
        """Note that the newest collective of a group is over, and with it all before it."""
        words = self._recorder.words
        if words is not None and watched.slot < MAX_GROUPS:
            words[watched.word + 2] = watched.started

    def finish_all(self) -> None:
        """Note that whatever was issued so far is over."""
        words = self._recorder.words
        if words is not None:
            for watched in self.watched[:MAX_GROUPS]:
                words[watched.word + 2] = watched.started

    def pop_began(self) -> int:
        """Return the edge before the blocking collective that this thread has just issued, 0 where there is none."""
        began, thread = self._began
        if thread != get_ident():
            return 0
        self._began = (0, 0)
        return began

    def pop_blocking(self) -> str:
        """End the blocking collective that the thread has just waited for; return its operation."""
        (operation, watched), self.blocking = self.blocking, ("asynchronous", None)
        if watched is not None:
            self.finish(watched)
        return operation

    def pre_hook(
        self, watched: Group, kinds: dict[Any, Kind], failed: Callable[[Exception], None]
    ) -> Callable[[Any], None]:
        """Return what a group calls before each of its operations. ``kinds`` is by torch's enum."""
        recorder = self._recorder

        def before(issued: Any) -> None:
            if self.closed or not recorder.enabled:
                return
            entered = perf_counter_ns()
            try:
                kind = kinds.get(issued.name)
                if kind is None:
                    self._began = (0, 0)
                    return  # point to point: its counts differ between ranks by design
                self.issue(watched, kind, issued.input_tensors, blocking=not issued.async_op)
            except Exception as error:
                self.failed = True
                failed(error)
            recorder.self_time_ns += perf_counter_ns() - entered

        return before


def _waited_for_inside() -> bool:
    """Return whether native code that waits for it issues the collective for which a group's pre-hook is called."""
    frame = inspect.currentframe()
    for _ in range(3):  # this function, `issue` and the pre-hook
        frame = frame and frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _WAITING_INSIDE
