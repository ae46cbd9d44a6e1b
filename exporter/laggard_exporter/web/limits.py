"""The rate limit of the web configuration file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Rate:
    """A bucket of ``burst`` requests that gets one more every ``interval`` seconds; with interval 0 there is no limit.

    Raises :class:`ValueError` for an interval without burst: nobody would ever be answered.
    """

    def __init__(self, interval: float = 0.0, burst: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        if interval and not burst:
            raise ValueError("rate_limit: burst 0 answers nobody; give 1 or more")
        self._interval = interval
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock()
        self._lock = threading.Lock()

    def acquire(self) -> bool:
        """Return whether one more request may be answered now."""
        if not self._interval:
            return True
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._at) / self._interval)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True
