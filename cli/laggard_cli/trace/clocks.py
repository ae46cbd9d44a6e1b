"""How far the clocks of the hosts are apart: all ranks leave a collective at the same time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from laggard_cli.trace.files import RankTrace


class Skew(NamedTuple):
    """By how much a host's clock is ahead of the first one's, in microseconds."""

    ahead: int
    #: What the half of the steps differs from it by at most.
    spread: int
    #: Steps whose last collective both left.
    steps: int


def skews(traces: Sequence[RankTrace]) -> dict[str, Skew | None]:
    """Return the skew of each host; ``None`` where no collective of a step tells it.

    Ranks of one host share its clock. A host is compared with that of the first trace by the medians of their ranks in
    each step, since a rank may leave a collective a little before another, and any may be slow.
    """
    hosts: dict[str, list[RankTrace]] = {}
    for trace in traces:
        hosts.setdefault(trace.host, []).append(trace)
    names = list(hosts)
    first = _left(hosts[names[0]])
    found: dict[str, Skew | None] = {names[0]: Skew(0, 0, len(first))}
    for name in names[1:]:
        there = _left(hosts[name])
        ahead = [there[step] - first[step] for step in there.keys() & first.keys()]
        if ahead:
            middle = statistics.median(ahead)
            spread = statistics.median(abs(each - middle) for each in ahead)
            found[name] = Skew(round(middle), round(spread), len(ahead))
        else:
            found[name] = None
    return found


def _left(traces: Sequence[RankTrace]) -> dict[int, float]:
    steps = {step for trace in traces for step in trace.left}
    return {step: statistics.median(trace.left[step] for trace in traces if step in trace.left) for step in steps}
