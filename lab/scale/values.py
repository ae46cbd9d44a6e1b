"""What the model says of all ranks and their exporters at the present time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from lab.evaluation.model.blocks import Array
from lab.evaluation.model.exposition import incarnations
from lab.evaluation.model.job import Job
from lab.evaluation.model.target import EPOCH, Target


class _Everything:
    """Holds every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Values:
    """The targets of all runs, and what their series are worth now.

    Args:
        jobs: the runs.
        tick: values change once in so many seconds.
    """

    def __init__(self, jobs: list[Job], tick: float) -> None:
        self.targets = [target for job in jobs for each in incarnations(job) for target in each.targets(_Everything())]
        #: When their clock began, in seconds since 1970.
        self.began = time.time()
        self._tick = tick
        self._shifts = [self._shift(target) for target in self.targets]
        self._known: dict[int, tuple[float, Array]] = {}

    def now(self, number: int) -> Array | None:
        """Return a target's values and, behind them, a zero; None before its beginning and after its end."""
        now = time.time() - self.began
        target = self.targets[number]
        if not target.begin <= now <= target.end:
            return None
        at = now - now % self._tick
        known = self._known.get(number)
        if known is None or known[0] != at:
            known = self._known[number] = at, np.append(target.read(at) + self._shifts[number], 0.0)
        return known[1]

    def _shift(self, target: Target) -> Array:
        """Return what makes times of the model's clock times of today."""
        of_time = [series.partition("\t")[0].endswith("_timestamp_seconds") for series in target.series]
        return np.where(of_time, self.began - EPOCH, 0.0)


def name_and_labels(series: str) -> tuple[str, dict[str, str]]:
    """Return a series of the model by its parts."""
    name, *labels = series.split("\t")
    return name, dict(zip(labels[::2], labels[1::2], strict=True))
