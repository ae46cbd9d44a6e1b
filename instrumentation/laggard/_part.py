"""What lives as long as a process trains: hooks and all else that is told of steps, reports, signals and forks."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from laggard._hooks.exposure import Exposure
    from laggard._hooks.torch_compile_state import Traced
    from laggard._recorder import Recorder
    from laggard._report import Report
    from laggard._steps import Step
    from laggard.shared.peers import PeerGroup


#: Drains in the shortest interval between two scrapes that a profile has. One of them reports what is dear to read.
DRAINS_A_SCRAPE = 5


class Host(Protocol):
    """What a part may ask of the process that it runs in."""

    recorder: Recorder
    #: Called on the training thread with UPDATE or STEP_END when a step has ended, while somebody waits for that.
    at_step: Callable[[int], None] | None
    #: The newest waits for a collective of a millisecond or more: operation and the ``perf_counter_ns`` of its start
    #: and end.
    slow_collectives: deque[tuple[str, int, int]]
    traced: Traced
    #: Called at the end of each backward pass with the ``perf_counter_ns`` of its start and end. Must not raise.
    backward_observers: list[Callable[[int, int], None]]
    #: Called on the training thread with each new iterator of a DataLoader, before its first batch. Must not raise.
    iterator_observers: list[Callable[[Any], None]]
    #: Called with True when the compiler begins to look at code, with False when it has. Must not raise.
    compilation_observers: list[Callable[[bool], None]]
    #: Called with True before torch's profiler starts, with False after it has. Must not raise.
    profiler_observers: list[Callable[[bool], None]]
    #: Whether exposed communication is seen; what times a wait counts it there.
    exposure: Exposure
    #: What is known of the ranks that do the same work.
    peers: PeerGroup

    def training_evidence(self, rank: int | None = None, world_size: int | None = None) -> None:
        """Say that this process trains: reporting starts. Cheap once it has started; never raises."""

    def group_evidence(self, rank: int | None, world_size: int | None) -> None:
        """Say that this process makes a process group, as what trains does. Never raises."""

    def training_ended(self) -> None:
        """Say that the rank has ended its training, though not its process. Never raises."""

    def training_aborted(self) -> None:
        """Say that another thread has taken the process group from the one that trains. Never raises."""

    def training_failed(self, error: BaseException) -> None:
        """Say that an exception has ended the training, though not the process. Never raises."""

    def not_training(self) -> None:
        """Say that this process is a data worker: nothing is recorded or exported from here on. Never raises."""

    def hear(self, number: int) -> bool:
        """Have :meth:`Part.woken` told of a signal that has its default action; return whether it is. Never raises."""
        ...

    def part_failed(self, part: Part, error: Exception) -> None:
        """Take a part out of service: it is uninstalled, logged once and counted. Never raises."""


class Part:
    """A part of the instrumentation that is there as long as a process trains, and fails alone.

    A subclass overrides the moments of a process's life in which it has something to do.
    """

    name: ClassVar[str]
    #: What LAGGARD_DISABLED_HOOKS may still call it.
    former_name: ClassVar[str] = ""
    #: The signal of :data:`laggard.shared.metrics.SIGNALS` that is gone when the part fails, if it has one.
    signal: ClassVar[str] = ""
    #: One drain in this many reports the part, from the first one on; and while telemetry costs more than its budget.
    share: ClassVar[int] = 1
    resting_share: ClassVar[int] = 1

    def __init__(self, host: Host) -> None:
        self.host = host
        self.recorder = host.recorder
        self.installed = False
        self._resting = False
        self._drains = 0

    @property
    def available(self) -> bool:
        """Whether the part's signal can be trusted now."""
        return self.installed

    def report(self, report: Report) -> None:
        """Report what the part gathered since the last call. Called by the drain thread."""

    def steps_ended(self, steps: list[Step]) -> None:
        """Take the steps that ended since the last call. Called by the drain thread."""

    def step_attributes(self, step: Step) -> Mapping[str, float]:  # noqa: ARG002 - for those that know something
        """Return what the part knows of a step that is being traced. Called by the drain thread. Must not raise."""
        return {}

    def state_file_opened(self, words: memoryview[int]) -> None:
        """Write what the part keeps in the state file's live words, now that there is one."""

    def training_began(self) -> None:
        """Begin what only a rank does. On the thread that proved that this process trains."""

    def woken(self, signals: bytes) -> None:
        """Take the numbers of signals that arrived. Called by the drain thread, also while the main thread is stuck."""

    def forked(self) -> None:
        """Forget what the parent gathered. In a forked child, which destroys nothing that belongs to the parent."""

    def rest(self) -> None:
        """Give up what is optional, since telemetry costs more than its budget. Called by the drain thread."""
        self._resting = True

    def resume(self) -> None:
        """End the rest. Called by the drain thread."""
        self._resting = False

    def due(self, *, last: bool = False) -> bool:
        """Return whether the part reports in this drain, the ``last`` one or another; each drain asks once."""
        drains, self._drains = self._drains, self._drains + 1
        return last or drains % (self.resting_share if self._resting else self.share) == 0

    def uninstall(self) -> None:
        """Do nothing any more."""
        self.installed = False

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that an exception in it disables this part instead of reaching the caller."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            if not self.installed:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:
                self.host.part_failed(self, error)

        return call
