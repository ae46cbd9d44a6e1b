"""Which cases a seed has, and which of them one Prometheus sees together."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from lab.evaluation.draw import Draw
from lab.evaluation.model.job import Case
from lab.evaluation.scenarios import SCENARIOS
from lab.evaluation.scenarios.consequences import with_consequences

SIZES = (2, 4, 8, 64, 512)
#: A scenario that is played with all sizes has these for one seed in so many: they cost most.
_RARE = {64: 3, 512: 12}
#: How often a drawn size is each of SIZES: what large runs do the others show, and these are watched for hours.
_WEIGHTS = (0.22, 0.36, 0.39, 0.03, 0.0)
#: Scenarios that are also played with 10,000 ranks, one of them for every other seed.
LARGE = ("slow_forward", "healthy", "hang_in_data", "metrics_lost")
LARGE_RANKS = 10_000
#: Ranks of one batch.
_BATCH_RANKS = 1500


def cases(seed: int, names: Iterable[str], sizes: Collection[int], step: float | None = None) -> list[Case]:
    """Return the cases of some scenarios with a seed, of those among their sizes that are wanted.

    Args:
        seed: decides what is drawn.
        names: the scenarios.
        sizes: numbers of ranks.
        step: seconds of own time in the steps of all, instead of those that are drawn.
    """
    found: list[Case] = []
    for name in names:
        scenario = SCENARIOS[name]
        if scenario.cases is None:
            ranks = [size for size in SIZES if (zlib.crc32(name.encode()) + seed) % _RARE.get(size, 1) == 0]
        else:
            ranks = _drawn(seed, name, scenario.cases, scenario.least)
        for number, size in enumerate(ranks):
            if size in sizes:
                draw = Draw(seed, name, size, number if scenario.cases else 0, step=step)
                found.append(with_consequences(replace(scenario.make(draw), scenario=name)))
    return found


def large(seed: int, names: Collection[str]) -> list[Case]:
    """Return the case with very many ranks that a seed has, if it has one and its scenario is wanted."""
    name = LARGE[seed // 2 % len(LARGE)]
    if seed % 2 or name not in names:
        return []
    return [with_consequences(replace(SCENARIOS[name].make(Draw(seed, name, LARGE_RANKS)), scenario=name))]


def _drawn(seed: int, name: str, count: int, least: int) -> list[int]:
    random = np.random.default_rng((seed, zlib.crc32(name.encode())))
    weights = np.array([weight * (size >= least) for size, weight in zip(SIZES, _WEIGHTS, strict=True)])
    return [int(size) for size in random.choice(SIZES, count, p=weights / weights.sum())]


def batches(found: list[Case]) -> list[list[Case]]:
    """Return cases of about the same length together, the shortest first."""
    made: list[list[Case]] = []
    for case in sorted(found, key=lambda case: case.job.horizon):
        last = made[-1] if made else []
        ranks = sum(each.job.ranks for each in last)
        if last and ranks + case.job.ranks <= _BATCH_RANKS and case.job.horizon < 1.3 * last[0].job.horizon + 60:
            last.append(case)
        else:
            made.append([case])
    return made
