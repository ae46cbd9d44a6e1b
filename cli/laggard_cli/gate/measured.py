"""What the gate knows of a run, wherever it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laggard.shared.phases import Phase

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
    recordings: tuple[int, ...] = ()
    """Units of each recording, where several make up the run; else empty."""

    @property
    def length(self) -> int:
        """Number of units."""
        return len(self.step)

    def parts(self, series: Array) -> list[Array]:
        """Return a series of the run by recording."""
        return np.split(series, np.cumsum(self.recordings)[:-1]) if self.recordings else [series]


def joined(source: str, runs: Sequence[Measured]) -> Measured:
    """Return several recordings, alike in ranks and unit, as one run."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    names = dict.fromkeys(name for run in runs for name in run.phases)
    counted = [name for name in first.throughput if all(name in run.throughput for run in runs)]
    kinds = [kind for kind in first.memory if all(kind in run.memory for run in runs)]
    return replace(
        first,
        source=source,
        step=np.concatenate([run.step for run in runs]),
        phases={name: np.concatenate([run.phases.get(name, 0 * run.step) for run in runs]) for name in names},
        throughput={name: np.concatenate([run.throughput[name] for run in runs]) for name in counted},
        memory={kind: max(run.memory[kind] for run in runs) for kind in kinds},
        recordings=tuple(length for run in runs for length in (run.recordings or (run.length,))),
    )
