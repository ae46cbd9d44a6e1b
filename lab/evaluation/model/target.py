"""A target of a scrape: series, and the samples that Prometheus stores of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.model.blocks import Array

#: Unix time at which the evaluation's clock begins.
EPOCH = 1_700_000_000
#: Prometheus' mark of a series that a scrape no longer found.
STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]


@dataclass
class Target:
    """Series that are scraped at one moment: labels, and what they are worth at a time (NaN: not there)."""

    series: list[str]
    read: Callable[[float], Array]
    #: Seconds into each interval.
    offset: float
    #: Whether Prometheus marks what is gone.
    marks: bool
    #: Nothing is scraped before and after these times.
    begin: float = 0.0
    end: float = float("inf")
    #: It is scraped in one of this many intervals.
    every: int = 1
    _there: NDArray[np.bool_] | None = None

    def sample(self, time: float) -> Array:
        """Return the values to store, with marks for what the scrape before still found."""
        values = self.read(time)
        there = ~np.isnan(values)
        if self.marks and self._there is not None:
            values[self._there & ~there] = STALE
        self._there = there
        return values
