"""What the gate knows of a run, wherever it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laggard.conventions import Phase

Array = NDArray[np.float64]

#: What a step's time is compared without: it comes once in a while, and is in the throughput.
PAUSES = (Phase.CHECKPOINT.label, Phase.EVALUATION.label)


@dataclass(frozen=True)
class Measured:
    """One run: series of one value for each unit, in the order of time, all of the same length.

    A unit is a step, or an interval of Prometheus. Values are means over the ranks: in a synchronous job those share
    their steps, so that ten ranks are not ten measurements.
    """

    source: str
    """What the user gave."""
    run: str
    ranks: int
    unit: Literal["step", "interval"]
    step: Array
    """Seconds of a step without checkpoint and evaluation."""
    phases: dict[str, Array]
    """Seconds that a step spends in a phase; a phase that is not there took none."""
    throughput: dict[str, Array]
    """Seconds of the run for one step, sample or token, all included; keys are "steps", "samples" and "tokens"."""
    memory: dict[str, float]
    """Highest number of bytes that any rank used, by kind."""

    @property
    def length(self) -> int:
        """Number of units."""
        return len(self.step)
