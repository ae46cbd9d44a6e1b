"""What a figure varies by, whatever the noise is distributed like."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

#: Standard deviations on each side of a mean that hold 95 % of a normal distribution.
_NORMAL_95 = 1.96


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median.

    Both ends are values themselves, by the binomial distribution of how many values lie below the median. So nothing is
    assumed of their distribution, and a few that were measured beside a burst of other work move neither end. Of fewer
    than six values the interval is all of them, which holds less than 95 %.
    """
    ordered = sorted(values)
    outside = max(0, int((len(ordered) - _NORMAL_95 * len(ordered) ** 0.5) / 2))
    return ordered[outside], ordered[-1 - outside]


def typical(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and by how much it may be off at 95 % confidence."""
    middle = statistics.median(values)
    low, high = interval(values)
    return round(middle, 1), round(max(high - middle, middle - low), 1)
