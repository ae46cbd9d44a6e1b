"""The test: are the values of one series larger than those of another, by how much, and how sure is that?

Steps of one run resemble their neighbours, so a test that takes each for a measurement of its own finds differences
between equal runs. Therefore values are averaged over blocks so long that blocks hardly know of each other, and blocks
are compared by rank: by the test of Mann and Whitney, and by the median of all differences between a block of one run
and a block of the other (Hodges and Lehmann). A few blocks with a pause in them move neither;
:mod:`laggard_cli.gate.means` sees those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from statistics import NormalDist

import numpy as np

from laggard_cli.gate.measured import Array
from laggard_cli.gate.student import quantile, tail

#: Of fewer values nobody knows how much they resemble each other.
MIN_VALUES = 30
#: Independent values of a series whose correlation time is longer than can be told from it.
_LEAST_TURNS = 3.0
#: With fewer blocks than these ranks cannot tell a difference with certainty.
MIN_BLOCKS = 10
#: More blocks than these add nothing; longer ones resemble each other less.
_MAX_BLOCKS = 100
#: Fewer than these only where blocks would otherwise be shorter than a correlation time.
_WANTED_BLOCKS = 20
#: Length of a block in correlation times.
BLOCK_TIMES = 4
#: The window over which correlations are summed, in correlation times: five of Sokal's, which are half as long.
_WINDOW_TIMES = 2.5
#: At most this chance that the true change is above the upper bound.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Second series against the first, in the unit of their values."""

    shift: float
    """Estimate of the difference (Hodges and Lehmann)."""
    error: float
    """Its standard error."""
    freedom: float
    """Degrees of freedom of the error; infinitely many where blocks were compared by rank."""
    p: float
    """Chance of such an excess where the second is not larger, one-sided."""
    superiority: float
    """Share of pairs of blocks in which the second is larger, 0 to 1; 0.5 where they are equal (Vargha and Delaney)."""
    block: int
    """Values in a block."""

    @property
    def upper(self) -> float:
        """One-sided upper bound of the shift at :data:`CONFIDENCE`."""
        return self.shift + quantile(CONFIDENCE, self.freedom) * self.error


def compare(first: Array, second: Array) -> Difference:
    """Compare two series of which neither is empty."""
    time = max(correlation_time(first), correlation_time(second))
    shorter = min(len(first), len(second))
    block = block_length(time, shorter)
    if shorter // block < MIN_BLOCKS:
        return _by_spread(first, second, time)
    one, two = blocks(first, block), blocks(second, block)
    differences = np.sort((two[:, None] - one[None, :]).ravel())
    pairs = len(differences)
    wins = float((differences > 0).sum() + 0.5 * (differences == 0).sum())
    inflation = sqrt(_inflation(time, block))
    spread = inflation * _spread(one, two)
    shift = float(np.median(differences))
    # The bound that belongs to the test: the shift at which it would turn (Moses 1953). Ties do not narrow it.
    sure = quantile(CONFIDENCE, inf)
    reach = inflation * sure * sqrt(pairs * (len(one) + len(two) + 1) / 12)
    upper = float(differences[min(pairs - 1, ceil(pairs / 2 + reach))])
    return Difference(
        shift=shift,
        error=(upper - shift) / sure,
        freedom=inf,
        # Half a pair less: U moves in steps.
        p=tail((wins - pairs / 2 - 0.5) / spread, inf) if spread else 1.0,
        superiority=wins / pairs,
        block=block,
    )


def _by_spread(first: Array, second: Array, time: float) -> Difference:
    """Compare series that drift: all that they vary by may be drift, of which they have seen a few turns.

    Student's test on medians, with as many independent values as there are correlation times, but three where that time
    is as long as can be told. The spread is that of the middle half, so that pauses do not count.
    """
    sizes = [max(_LEAST_TURNS, len(series) / time) for series in (first, second)]
    spreads = [_middle(series) for series in (first, second)]
    shift = float(np.median(second) - np.median(first))
    error = sqrt(sum(spread**2 / size for spread, size in zip(spreads, sizes, strict=True)))
    freedom = sum(sizes) - 2
    thinned = (series[:: ceil(len(series) / _MAX_BLOCKS)] for series in (first, second))
    one, two = thinned
    differences = two[:, None] - one[None, :]
    return Difference(
        shift=shift,
        error=error,
        freedom=freedom,
        p=tail(shift / error, freedom) if error else float(shift <= 0),
        superiority=float((differences > 0).mean() + 0.5 * (differences == 0).mean()),
        block=ceil(time),
    )


def _middle(values: Array) -> float:
    """Return the standard deviation that belongs to the quartiles, or of all values where those are equal."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float((high - low) / (2 * NormalDist().inv_cdf(0.75)) or values.std())


def _spread(one: Array, two: Array) -> float:
    """Return the standard deviation of U where both are alike, less for ties."""
    size = len(one) + len(two)
    ties = np.unique(np.concatenate((one, two)), return_counts=True)[1].astype(float)
    variance = len(one) * len(two) / 12 * (size + 1 - float((ties**3 - ties).sum()) / (size * (size - 1)))
    return sqrt(max(0.0, variance))


def blocks(values: Array, length: int) -> Array:
    """Return means over blocks of at least ``length`` values that follow each other; at least one block."""
    number = max(1, min(len(values) // length, _MAX_BLOCKS))
    edges = np.linspace(0, len(values), number + 1).astype(int)
    return np.add.reduceat(values, edges[:-1]) / np.diff(edges)


def block_length(time: float, values: int) -> int:
    """Return how many values a block has; one where values know nothing of each other.

    Four correlation times, so that blocks that follow each other correlate by less than 0.1. Where blocks would be too
    few, they are shorter, down to one correlation time, and :func:`_inflation` makes up for that.
    """
    return max(ceil(time), min(1 + ceil(BLOCK_TIMES * (time - 1)), values // _WANTED_BLOCKS))


def _inflation(time: float, block: int) -> float:
    """Return by how much the variance of a mean over blocks is larger than if they were independent.

    Of a process whose correlation decays by one factor from value to value, with this correlation time.
    """
    decay = (time - 1) / (time + 1)
    return 1 / (1 - 2 * decay * (1 - decay**block) / (block * (1 - decay**2)))


def correlation_time(values: Array) -> float:
    """Return the integrated autocorrelation time, in values: so many are worth one that is independent. At least 1.

    Of the ranks of the values, since a single long step hides how much the others resemble each other. Correlations are
    summed over a window that grows with the result (Sokal 1997, "Monte Carlo Methods in Statistical Mechanics", section
    3). A mean that is estimated from the same values makes each correlation too small by the result, divided by their
    number; that is put back.
    """
    size = len(values)
    if values.min() == values.max():
        return 1.0
    # Equal values share their rank, or their order in time would look like a trend.
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts + 1) / 2)[places] - (size - 1) / 2
    correlations = np.fft.irfft(np.abs(np.fft.rfft(ranks, 2 * size)) ** 2)[: size // 2]
    window = np.arange(len(correlations))
    times = (2 * np.cumsum(correlations / correlations[0]) - 1) / (1 - (2 * window + 1) / size)
    inside = np.flatnonzero(window >= _WINDOW_TIMES * times)
    return max(1.0, float(times[inside[0]])) if len(inside) else float(size)


def holm(chances: Sequence[float]) -> list[float]:
    """Return the chances, adjusted for being so many (Holm 1979): below a level, they are so all together."""
    adjusted = [0.0] * len(chances)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[index]))
        adjusted[index] = highest
    return adjusted
