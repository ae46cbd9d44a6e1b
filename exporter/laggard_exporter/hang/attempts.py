"""Which dumps are of one attempt of a job, where those of several lie beside each other.

Members of a group issue a collective of one number at about one time. A dump whose times differ from
those of most is of another attempt, and proves nothing about this one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median_high

from laggard_exporter.hang.dump import Dump, Group

#: Members of a group issue the same collective within this time in nanoseconds, in most of their collectives.
_ATTEMPT_NS = 120 * 10**9


def of_other_attempts(dumps: Mapping[int, Dump]) -> set[int]:
    """Return the ranks whose dumps are of another attempt than most."""
    found: dict[Group, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for dump in dumps.values():
        for group, times in dump.times.items():
            for sequence, time in times.items():
                found[group][sequence].append(time)
    usual = {
        group: {sequence: median_high(times) for sequence, times in by_sequence.items()}
        for group, by_sequence in found.items()
    }
    return {rank for rank, dump in dumps.items() if _differs(dump, usual, found)}


def _differs(
    dump: Dump, usual: Mapping[Group, Mapping[int, int]], found: Mapping[Group, Mapping[int, list[int]]]
) -> bool:
    """Return whether a dump's times cannot be of the attempt that most dumps are of."""
    apart: list[int] = []
    for group, times in dump.times.items():
        others = {each for each, known in found[group].items() if len(known) > (each in times)}
        common = others & times.keys()
        apart += [abs(times[sequence] - usual[group][sequence]) for sequence in common]
        if not common and others:
            # What is issued later has the higher number.
            last = max(others)
            ahead = [usual[group][last] - time for sequence, time in times.items() if sequence > last]
            apart += [max(ahead)] if ahead and min(ahead) > 0 else []
    # One that all waited in together may be issued by one of them as late as torch permits.
    limit = _ATTEMPT_NS if len(apart) > 1 else max(_ATTEMPT_NS, dump.timeout)
    return bool(apart) and min(apart) > limit
