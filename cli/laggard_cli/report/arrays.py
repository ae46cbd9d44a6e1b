"""Arithmetic on rows of ranks and columns of times in which values may be missing: NaN is left out, never 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def any_rank(values: Array) -> Flags:
    """Return at which times any rank has a value."""
    return np.array([bool(len(known(values[:, column]))) for column in range(values.shape[1])])


def known(values: Array) -> Array:
    """Return the values that are there, in one row."""
    return values[np.isfinite(values)]


def mean(values: Array) -> float:
    """Return the mean of what is there; NaN of nothing."""
    found = known(values)
    return float(found.mean()) if len(found) else float("nan")


def by_time(values: Array, of: Callable[[Array], float]) -> Array:
    """Return one value for each time, of the ranks that have one then."""
    columns = (known(values[:, column]) for column in range(values.shape[1]))
    return np.array([of(column) if len(column) else np.nan for column in columns])


def middle(values: Array) -> Array:
    """Return the median of the ranks at each time."""
    return by_time(values, lambda column: float(np.median(column)))


def most(values: Array) -> Array:
    """Return the most of the ranks at each time."""
    return by_time(values, lambda column: float(column.max()))


def stretches(flags: Flags) -> list[tuple[int, int]]:
    """Return the stretches of true values, as first place and place behind the last."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int64))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
