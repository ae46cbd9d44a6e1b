"""What goes wrong in a rank of the demo. Each fault is real: time passes, memory is held, objects are collected."""

from __future__ import annotations

import io
import time
from collections import deque
from typing import Any

import torch
from torch.autograd import Function

#: Records that are made before the clock is looked at again.
_RECORDS = 1000
#: Batches of records that live: so many objects that a collection of all of them takes tens of milliseconds.
_LIVE = 100


class SlowBackward(Function):
    """Passes a tensor through and sleeps on the way back, as a slower device or a longer batch would."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:  # noqa: D102 - described by the class
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: D102 - as above
        time.sleep(ctx.seconds)
        return gradients[0], None


class Records:
    """Small objects that a script keeps of its last samples, which the garbage collector looks at again and again."""

    def __init__(self) -> None:
        self._live: deque[list[list[int]]] = deque(maxlen=_LIVE)

    @property
    def live(self) -> int:
        """Records that are kept."""
        return sum(map(len, self._live))

    def keep(self, seconds: float) -> None:
        """Make records for so long, with the collections that this brings about, and forget the oldest."""
        if not seconds:
            self._live.clear()
            return
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            self._live.append([[number] for number in range(_RECORDS)])


class Leak:
    """Memory of the host that grows with time, as a list does to which every step appends."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._last = 0.0

    @property
    def held(self) -> int:
        """Bytes that have leaked."""
        return sum(map(len, self._held))

    def grow(self, rate: float) -> None:
        """Hold as many bytes more as ``rate``, in bytes a second, makes since the last call; at 0 give all back."""
        now = time.monotonic()
        if not rate:
            self._held.clear()
        elif self._last:  # unknown at the first call
            self._held.append(b"\1" * int(rate * (now - self._last)))
        self._last = now


class SlowStorage(io.FileIO):
    """A file on storage that needs ``seconds`` for a checkpoint."""

    def __init__(self, path: str, seconds: float, size: int) -> None:
        super().__init__(path, "wb")
        self._seconds_per_byte = seconds / size

    def write(self, data: Any, /) -> int:
        """Write as slowly as the storage does."""
        time.sleep(len(data) * self._seconds_per_byte)
        return super().write(data)
