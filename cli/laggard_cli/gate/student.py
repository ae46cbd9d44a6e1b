"""Student's t distribution, of which Python has only the limit, the normal one."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

_POINTS = 2001


def tail(t: float, freedom: float) -> float:
    """Return the chance of a larger value than ``t``; with infinite degrees of freedom, of the normal distribution."""
    if math.isinf(freedom):
        return 0.5 * math.erfc(t / math.sqrt(2))
    # t = sqrt(freedom) tan(angle) turns the density into a power of the cosine.
    angles = np.linspace(math.atan(t / math.sqrt(freedom)), math.pi / 2, _POINTS)
    heights = np.maximum(np.cos(angles), 0.0) ** (freedom - 1)
    area = float((heights[1:] + heights[:-1]).sum() / 2) * float(angles[1] - angles[0])
    return area * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


@cache
def quantile(chance: float, freedom: float) -> float:
    """Return what is exceeded with the rest of a chance between 0.5 and 1."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(chance)
    low, high = 0.0, 1e6
    while high - low > 1e-6 * (1 + low):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > 1 - chance else (low, middle)
    return high
