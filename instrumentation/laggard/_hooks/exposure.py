"""Whether the exposed communication of this process is seen at all.

A wait that happens in C++ where no patch reaches (a graph compiled to native code) would count as the rank's own
work, and the victims of a straggler would look like culprits. So the collectives that the training thread issues are
compared with the waits for them that were timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Steps over which issued and waited are compared: in a single one a wait may still be ahead.
_STEPS = 2


class Exposure:
    """Counts on the training thread, judged by the drain thread."""

    __slots__ = (
        "_ended",
        "_seen",
        "compute_stream",
        "current_stream",
        "hidden",
        "in_backward",
        "issued",
        "issued_at",
        "reduced",
        "waited",
        "waited_in_backward",
    )

    def __init__(self) -> None:
        #: Collectives issued by the training thread: outside of backward, and inside of it.
        self.issued = 0
        self.in_backward = 0
        #: On the device's clock: the edge at which the newest collective was issued inside of backward.
        self.issued_at = 0
        #: On the device's clock: the stream that backward runs in, ``None`` until the first one.
        self.compute_stream: Any = None
        #: Tells the current stream, while the device's clock is in use.
        self.current_stream: Callable[[], Any] | None = None
        #: Backward passes whose wait for DistributedDataParallel was read from its reducer.
        self.reduced = 0
        #: Other waits that were timed.
        self.waited = 0
        #: Those of them inside of backward.
        self.waited_in_backward = 0
        #: Collectives are issued and nobody is seen to wait for them.
        self.hidden = False
        self._seen = (0, 0, 0, 0)
        self._ended = 0

    def steps_ended(self, count: int) -> None:
        """Judge the steps since the last judgement, once there are enough."""
        self._ended += count
        if self._ended < _STEPS:
            return
        self._ended = 0
        now = (self.issued, self.in_backward, self.reduced, self.waited)
        issued, in_backward, reduced, waited = (new - old for new, old in zip(now, self._seen, strict=True))
        self._seen = now
        # What a reducer issues in backward is in its statistics; without a reducer it must be waited for like the rest.
        unexplained = issued if reduced else issued + in_backward
        self.hidden = bool(unexplained) and not waited
