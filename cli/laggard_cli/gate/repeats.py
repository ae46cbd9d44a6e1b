"""The test where a side has several recordings: they say by how much equal runs differ, which one recording cannot.

A machine that others use, or another placement in memory, makes a whole run slower. Nothing inside of a run tells that,
so recordings are the units: Student's test on one value of each, with the spread that both sides have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np

from laggard_cli.gate.measured import Array
from laggard_cli.gate.statistics import Difference
from laggard_cli.gate.student import tail

#: Degrees of freedom with which a spread says anything: six recordings in all. A processor that is now alone and now
#: shared has two speeds, and fewer recordings are all of one of them by chance.
LEAST_FREEDOM = 4


def compare_recordings(
    first: Sequence[Array], second: Sequence[Array], value: Callable[[Array], float]
) -> Difference | None:
    """Compare two sides by a value of each recording; none where there are too few of them to know their spread."""
    one, two = (np.array([value(series) for series in side]) for side in (first, second))
    freedom = len(one) + len(two) - 2
    if freedom < LEAST_FREEDOM:
        return None
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (one, two))
    shift = float(two.mean() - one.mean())
    error = sqrt(squares / freedom * (1 / len(one) + 1 / len(two)))
    differences = two[:, None] - one[None, :]
    return Difference(
        shift=shift,
        error=error,
        freedom=float(freedom),
        p=tail(shift / error, freedom) if error else float(shift <= 0),
        superiority=float((differences > 0).mean() + 0.5 * (differences == 0).mean()),
        block=min(map(len, (*first, *second))),
    )
