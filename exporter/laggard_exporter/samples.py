"""What a collector yields: plain data, so that it may come from another process as well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple


class PartialFailureError(Exception):
    """Raised by a collector at its end: what it yielded is true, but something is missing."""


# Compared by identity: there is one object of each, and every sample is looked up by it.
@dataclass(frozen=True, eq=False)
class Family:
    """One metric family, named as Prometheus shows it. Every sample of a family carries all of ``labels``."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of a family; ``labels`` are the values of the family's labels, in their order."""

    family: Family
    labels: tuple[str, ...]
    value: float


#: Values by label values, for each family.
Grouped = dict[Family, dict[tuple[str, ...], float]]


def grouped(samples: Iterable[Sample]) -> Grouped:
    """Return the samples by family, each series once.

    Of two samples of one series the later wins: a series that comes twice would spoil the scrape.

    Raises :class:`ValueError` for a sample whose label values do not fit the labels of its family, or without number.
    """
    result: Grouped = {}
    for family, labels, value in samples:
        if len(labels) != len(family.labels):
            raise ValueError(f"{family.name} has the labels {family.labels}, got the values {labels}")
        if (series := result.get(family)) is None:
            series = result[family] = {}
        series[labels] = float(value)
    return result


def merged(collected: Iterable[Grouped]) -> Grouped:
    """Return the samples of several collectors, each family once: GPUs of two vendors have the same families."""
    result: Grouped = {}
    for samples in collected:
        for family, series in samples.items():
            result[family] = {**result[family], **series} if family in result else series
    return result
