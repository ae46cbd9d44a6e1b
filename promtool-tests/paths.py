"""A second path by which every series comes to Prometheus, or a second cluster with runs of the same names.

Neither changes anything.

``replica``: a highly available pair of servers writes into one store that keeps both. ``job``: two jobs scrape the
same targets, of which the second misses one scrape in seven; and by it ranks' own metrics come a scrape later. What the
exporter says of ages does not: it computes them when it is scraped.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from notation import STALE, Sample

#: Series in the notation of Prometheus, with its samples, or what promtool makes them of.
Line = tuple[str, Sequence[Sample] | str]

_JOB = re.compile(r'\bjob="([^"]*)"')

#: The cluster that is named; the one beside it is not, as on a site that has begun to label its clusters.
NAMED = "west"

#: How often the second job misses a scrape, in scrapes.
_MISSED = 7


def replica(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield each series twice, as a pair of servers writes it."""
    for series, samples in lines:
        if _is_recorded(series):
            yield series, samples
        else:
            yield _with(series, "replica", "a"), samples
            yield _with(series, "replica", "b"), samples


def job(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield each series twice, as two jobs scrape it."""
    for series, samples in lines:
        if _is_recorded(series):
            yield series, samples
        else:
            # Jobs that tell targets apart go on to do so.
            own = _JOB.search(series)
            second = f"{own[1]}-again" if own else "annotated"
            yield series if own else _with(series, "job", "monitor"), samples
            yield _with(series, "job", second), samples if isinstance(samples, str) else _later(series, samples)


def in_cluster(lines: Iterable[Line], name: str) -> Iterator[Line]:
    """Yield each series with the label of a cluster, as its Prometheus adds it to all. An empty name is no label."""
    for series, samples in lines:
        if not name:
            yield series, samples
        # What is recorded once for all clusters is there once.
        elif not series.startswith("laggard_threshold{"):
            yield _with(series, "cluster", name), samples


def _is_recorded(series: str) -> bool:
    """Return whether a rule of the pack gives the series, so that it comes by no path."""
    return ":" in series.partition("{")[0]


def _later(series: str, samples: Sequence[Sample]) -> Sequence[Sample]:
    if series.startswith("training_") and not series.startswith("training_process_"):
        samples = [None, *samples][: len(samples)]
    return [sample if (tick + 1) % _MISSED else STALE for tick, sample in enumerate(samples)]


def _with(series: str, label: str, value: str) -> str:
    """Return a series with one more label, or another value of it."""
    name, _, labels = series.removesuffix("}").partition("{")
    others = [pair for pair in re.findall(r'\w+="[^"]*"', labels) if not pair.startswith(f"{label}=")]
    return f"{name}{{" + ", ".join([*others, f'{label}="{value}"']) + "}"


#: By name, what makes of all series those of both paths.
SECOND: dict[str, Callable[[Iterable[Line]], Iterator[Line]]] = {"job": job, "replica": replica}

#: In place of a name: the plays take turns, each by its own name.
TURNS = "turns"


def second(name: str, play: str) -> str:
    """Return the name of a play's second path."""
    return sorted(SECOND)[zlib.crc32(play.encode()) % len(SECOND)] if name == TURNS else name
