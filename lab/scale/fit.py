"""What measured sizes say of larger ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: With fewer sizes a line fits always, and says nothing of itself.
FEWEST_SIZES = 3


@dataclass(frozen=True)
class Line:
    """A cost that has a fixed part and a part for each rank."""

    fixed: float
    each: float
    #: The largest difference to what was measured, as a share of it.
    off: float
    #: Between the two largest sizes the cost grows with this power of the ranks. Above 1 the line promises too much.
    power: float

    def at(self, ranks: int) -> float:
        """Return what the line says of so many ranks."""
        return self.fixed + self.each * ranks


def fit(ranks: Sequence[int], values: Sequence[float]) -> Line:
    """Return the line that is least off, as a share of what was measured: small sizes count as much as large ones.

    Args:
        ranks: sizes in ascending order, of which the last two differ.
        values: what each costs, above 0.
    """
    sizes, costs = np.array(ranks, dtype=float), np.array(values, dtype=float)
    columns = np.column_stack([np.ones_like(sizes), sizes]) / costs[:, None]
    (fixed, each), *_ = np.linalg.lstsq(columns, np.ones_like(costs), rcond=None)
    off = np.abs((fixed + each * sizes) / costs - 1).max()
    power = math.log(values[-1] / values[-2]) / math.log(ranks[-1] / ranks[-2])
    return Line(float(fixed), float(each), float(off), power)
