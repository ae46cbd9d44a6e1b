"""The second test: is the mean of a series larger than that of another, whatever few values it owes that to?

What comes in less than half of the blocks moves neither ranks nor medians (:mod:`laggard_cli.gate.statistics`), and
costs time all the same. Means over blocks are compared by permutation (Good, "Permutation, Parametric and Bootstrap
Tests of Hypotheses", 2005): of equal runs any block could as well belong to the other, so the difference of their means
is held against those of blocks that are dealt out anew. That is exact whatever the distribution: a few long pauses,
which may have fallen to one run by chance, prove nothing, and many do.
"""

from __future__ import annotations

from functools import cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from laggard_cli.gate.measured import Array
from laggard_cli.gate.statistics import BLOCK_TIMES, MIN_BLOCKS, Difference, blocks, correlation_time

#: Blocks of each run. Pauses that come in bursts, as when something else runs for a while, must fall into few blocks.
_BLOCKS = 20
#: Blocks are dealt out so often: a chance of 0.005 in three comparisons is eight of them.
_DEALS = 5000


def compare_means(first: Array, second: Array) -> Difference | None:
    """Compare the means of two series; none where they are too short for blocks that know little of each other."""
    time = max(correlation_time(first), correlation_time(second))
    shorter = min(len(first), len(second))
    block = max(ceil(BLOCK_TIMES * time), shorter // _BLOCKS)
    if shorter // block < MIN_BLOCKS:
        return None
    one, two = blocks(first, block), blocks(second, block)
    found = np.concatenate((one, two))
    shift = float(two.mean() - one.mean())
    dealt = found[_deals(len(one), len(two))].mean(axis=1)
    # The mean of the rest follows from that of the part.
    others = (found.sum() - len(two) * dealt) / len(one)
    as_large = int(np.count_nonzero(dealt - others >= shift - 1e-12 * abs(found).max()))
    return Difference(
        shift=shift,
        error=sqrt(one.var(ddof=1) / len(one) + two.var(ddof=1) / len(two)),
        freedom=float(min(len(one), len(two)) - 1),
        p=(1 + as_large) / (1 + _DEALS),
        superiority=float((two[:, None] > one[None, :]).mean() + 0.5 * (two[:, None] == one[None, :]).mean()),
        block=block,
    )


@cache
def _deals(one: int, two: int) -> NDArray[np.intp]:
    """Return which of all blocks the second run gets, for each deal: the same ones every time."""
    chance = np.random.default_rng(1)
    return np.argsort(chance.random((_DEALS, one + two)), axis=1)[:, :two]
