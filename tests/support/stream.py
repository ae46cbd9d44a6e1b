"""Streams of a device that does not exist: work takes as long as one says, and the host does not wait for it."""

from __future__ import annotations

import time
from typing import Any

MS = 1_000_000


class Stream:
    """One stream; the host's clock is set by hand, or the real one."""

    def __init__(self, now: int | None = None) -> None:
        self._now = now
        self._busy_until = 0

    @property
    def now(self) -> int:
        """The host's time in nanoseconds."""
        return time.perf_counter_ns() if self._now is None else self._now

    def host_works(self, milliseconds: float) -> None:
        """Let time go by."""
        if self._now is None:
            time.sleep(milliseconds / 1000)
        else:
            self._now += round(milliseconds * MS)

    def hand_over(self, milliseconds: float) -> None:
        """Have the stream work for so long, after all that it has."""
        self._busy_until = max(self._busy_until, self.now) + round(milliseconds * MS)

    def passes(self) -> int:
        """When the stream comes to what is handed over now."""
        return max(self._busy_until, self.now)

    def make(self) -> StreamEvent:
        """Return an event for which this is the current stream."""
        return StreamEvent(self)

    def record_event(self) -> StreamEvent:
        """Put an event into this stream."""
        event = self.make()
        event.record()
        return event

    def wait_event(self, event: Any) -> None:
        """Go on after an event only."""
        self._busy_until = max(self.passes(), getattr(event, "at", 0))

    def wait_stream(self, stream: Stream) -> None:
        """Go on after all that another stream has now."""
        self.wait_event(stream.record_event())


class StreamEvent:
    """What ``torch.cuda.Event`` does, on such a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.at = -1

    def record(self, stream: Stream | None = None, /) -> None:
        """Note when the stream, or else the current one, comes here."""
        self.at = (stream or self._stream).passes()

    def query(self) -> bool:
        """Say whether it has come here."""
        return self._stream.now >= self.at

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds to another event."""
        return (end_event.at - self.at) / MS
