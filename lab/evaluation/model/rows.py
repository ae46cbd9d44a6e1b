"""Rows: the values of one series for each rank, by name and further labels."""

from __future__ import annotations

import numpy as np

from lab.evaluation.model.blocks import Array

Key = tuple[str, tuple[tuple[str, str], ...]]
Rows = dict[Key, Array]


def add(rows: Rows, ranks: int, name: str, values: object, /, **labels: str) -> None:
    """Put a value, or one for each rank, into rows."""
    given = np.asarray(values, dtype=float)
    rows[name, tuple(labels.items())] = given if given.ndim else np.full(ranks, given)
