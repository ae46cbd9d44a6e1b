"""Phase edges on the clock of the device.

A host that trains on a device only hands work over: its clock sees how long that takes, not how long the work does. So
at each edge of a phase an event is put into the current stream, and the drain thread asks later when the stream came
to it. The whole step is then measured on that one clock: a fetch takes what the device really waited for it, and
handing over takes nothing.

Nothing here waits for the device. Events come from a pool and return to it; an edge that finds the pool empty, or a
stream that is being captured, is left out and counted, and its step is not measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from laggard._recorder import LOST, Event

#: Edges between two drains: about a hundred steps.
POOL = 4096

_MILLISECOND = 1_000_000


class DeviceEvent(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> object:
        """Put the event into the current stream."""

    def query(self) -> bool:
        """Say whether the stream has come to it."""
        ...

    def elapsed_time(self, end_event: DeviceEvent, /) -> float:
        """Return the milliseconds from this event to another; both are done."""
        ...


class DeviceClock:
    """Notes edges on the training thread and translates intervals on the drain thread."""

    def __init__(self, make: Callable[[], DeviceEvent], may_record: Callable[[], bool], pool: int = POOL) -> None:
        self._free = deque(make() for _ in range(pool))
        self._may_record = may_record
        self._noted: deque[tuple[int, DeviceEvent]] = deque()
        self._waiting: deque[Event] = deque()
        #: Device time of the edges that the device has passed, by the host's time at which they were noted.
        self._times: dict[int, int] = {}
        self._newest: tuple[int, DeviceEvent] | None = None
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
            return
        event.record()
        self._noted.append((at, event))

    def translate(self, events: Iterable[Event]) -> list[Event]:
        """Return the events that the device has passed, in order and by its clock.

        What it has not passed yet is kept for the next call; in the place of an interval without its edges stands a
        mark that says so.
        """
        self._waiting.extend(events)
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

    def _resolve(self) -> None:
        """Find the device time of each edge that the stream has come to."""
        while self._noted:
            at, event = self._noted[0]
            if not event.query():
                return
            if self._newest is None:
                now = at
            else:
                before, previous = self._newest
                # An edge can not be passed before it was noted: where it seems so, the device caught up with the host
                # since the first one, and all later times follow.
                now = max(before + round(previous.elapsed_time(event) * _MILLISECOND), at)
                self._free.append(previous)
            self._newest = now, event
            self._times[at] = now
            self._noted.popleft()

    def _forget(self) -> None:
        """Keep the edges that intervals still to come may begin at."""
        if len(self._times) > 2 * POOL:
            for at in sorted(self._times)[:POOL]:
                del self._times[at]
