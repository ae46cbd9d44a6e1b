"""Phase edges on the clock of the device.

A host that trains on a device only hands work over: its clock sees how long that takes, not how long the work does. So
at each edge of a phase an event is put into the current stream, and the drain thread asks later when the stream came
to it. The whole step is then measured on that one clock: a fetch takes what the device really waited for it, and
handing over takes nothing.

All edges go into one stream, the one that backward runs in. What another stream does meanwhile, a copy or a collective
ahead of its use, takes nothing there unless that stream is held up by it.

Nothing here waits for the device. Events come from a pool and return to it; an edge that finds the pool empty, or a
stream that is being captured, is left out and counted, and its step is not measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, Protocol

from laggard._events import LOST, Event

#: Edges between two drains: about a hundred steps. With FSDP a step may have a thousand, and the pool grows.
POOL = 4096
MAX_POOL = 32768

_MILLISECOND = 1_000_000


class DeviceEvent(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self, stream: Any, /) -> object:
        """Put the event into a stream, into the current one when that is ``None``."""

    def query(self) -> bool:
        """Say whether the stream has come to it."""
        ...

    def elapsed_time(self, end_event: DeviceEvent, /) -> float:
        """Return the milliseconds from this event to another; both are done."""
        ...


class DeviceClock:
    """Notes edges on the training thread and translates intervals on the drain thread."""

    def __init__(
        self,
        make: Callable[[], DeviceEvent],
        may_record: Callable[[], bool],
        pool: int = POOL,
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:
        #: Where edges go; ``None``: into the current stream.
        self.stream: Any = None
        self._now = now
        self._make = make
        self._pool = pool
        self._short = 0
        self._free = deque(make() for _ in range(pool))
        self._may_record = may_record
        self._noted: deque[tuple[int, DeviceEvent]] = deque()
        self._waiting: deque[Event] = deque()
        #: Device time of the edges that the device has passed, by the host's time at which they were noted.
        self._times: dict[int, int] = {}
        #: The newest edge that the device has passed, with its time since the first one.
        self._newest: tuple[int, DeviceEvent] | None = None
        #: Host's time of the first edge, as far as is known.
        self._offset = 0
        #: Device time of the end of the newest interval.
        self._last = 0
        self.dropped = 0

    def edge(self, at: int) -> None:
        """Note that an edge is handed to the device at the host's time ``at``. On the training thread."""
        if not self._may_record():
            self.dropped += 1
            return
        try:
            event = self._free.pop()
        except IndexError:
            self.dropped += 1
            self._short += 1
            return
        event.record(self.stream)
        self._noted.append((at, event))

    def translate(self, events: Iterable[Event]) -> list[Event]:
        """Return the events that the device has passed, in order and by its clock.

        What it has not passed yet is kept for the next call; in the place of an interval without its edges stands a
        mark that says so.
        """
        self._waiting.extend(events)
        self._grow()
        self._resolve()
        passed: list[Event] = []
        pending = self._noted[0][0] if self._noted else None
        while self._waiting:
            code, started, ended = self._waiting[0]
            if pending is not None and ended >= pending:
                break
            self._waiting.popleft()
            begin, end = self._times.get(started), self._times.get(ended)
            if started == ended:  # a mark; without an edge of its own it stands where the last interval ended
                begin = end = end or self._last
            elif begin is None or end is None:
                code, begin, end = LOST, self._last, self._last
            passed.append((code, begin, end))
            self._last = end
        self._forget()
        return passed

    def _grow(self) -> None:
        """Double a pool that was empty; a device that hangs does not have it grow for ever."""
        if self._short and self._pool < MAX_POOL:
            self._free.extend(self._make() for _ in range(self._pool))
            self._pool *= 2
        self._short = 0

    def _resolve(self) -> None:
        """Find the device time of each edge that the stream has come to."""
        while self._noted:
            at, event = self._noted[0]
            if not event.query():
                return
            elapsed = 0
            if self._newest is not None:
                before, previous = self._newest
                # HIP reads two stamps of the device, the later of which may be the lower by a hair.
                elapsed = before + max(0, round(previous.elapsed_time(event) * _MILLISECOND))
                self._free.append(previous)
            # An edge is passed after it was noted and before it is seen here. Where the clocks say otherwise, one of
            # them is faster, or the device was behind the host when the first edge was noted.
            self._offset = min(max(self._offset, at - elapsed), self._now() - elapsed)
            self._newest = elapsed, event
            self._times[at] = elapsed + self._offset
            self._noted.popleft()

    def _forget(self) -> None:
        """Keep the edges that intervals still to come may begin at."""
        if len(self._times) > 2 * MAX_POOL:
            for at in sorted(self._times)[:MAX_POOL]:
                del self._times[at]
