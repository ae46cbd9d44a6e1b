"""Which dumps are of earlier attempts of a job, or of an earlier moment, where several lie beside each other.

One attempt ends before the next one begins. So dumps are of an earlier attempt where all their calls were made before
all calls of newer ones, and a group begins again there to count its collectives: in one attempt no member is done with
a collective before another one has issued it. What is open in both may have been joined late, as torch permits.

A rank wrote its dump before others went on where these are done with a later collective of a group than the first that
is open on it, or than it has issued: they could not be without it. Gloo does not say how a collective ended. So it did
where others have issued calls after its file was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from laggard_exporter.hang.dump import Dump, Group

#: Between two attempts processes start, which takes longer, in nanoseconds; the clocks of hosts differ by less.
_GAP_NS = 10**9


def of_earlier_attempts(dumps: Mapping[int, Dump]) -> set[int]:
    """Return the ranks whose dumps are of an earlier attempt than the newest one."""
    newest: list[Dump] = []
    earlier: set[int] = set()
    for together in reversed(_apart(dump for dump in _comparable(dumps).values() if dump.span[1])):
        if newest and _repeat(together, newest):
            earlier |= {dump.rank for dump in together}
        else:
            newest += together
    return earlier


def of_earlier_moments(dumps: Mapping[int, Dump], members: Mapping[Group, set[int]]) -> set[int]:
    """Return the ranks of whose dumps what is open says nothing of now: it is over, by what others have done since."""
    ended: dict[Group, int] = {}
    for dump in dumps.values():
        for group, number in dump.ended.items():
            ended[group] = max(ended.get(group, 0), number)
    comparable = _comparable(dumps)
    latest = max((dump.span[1] for dump in comparable.values()), default=0) - _GAP_NS
    earlier = {rank for rank, dump in comparable.items() if 0 < dump.written < latest}
    for group, ranks in members.items():
        for rank in ranks & dumps.keys() if not group.gloo and group in ended else ():
            dump = dumps[rank]
            first = min((each.sequence for each in dump.pending if each.group == group), default=dump.newest.get(group))
            if first is not None and first < ended[group] and (dump.pending or dump.transfers):
                earlier.add(rank)
    return earlier


def why_going(dumps: Mapping[int, Dump]) -> str:
    """Return why the job may have been going on when the dumps were written, nothing where it stood still.

    A rank that is a moment late looks like one that never comes. What tells them apart is how long nobody has called
    anything: longer than calls paused before, or half the time after which torch gives up a collective.
    """
    newest = max((dump.span[1] for dump in dumps.values()), default=0)
    silent = max((dump.written for dump in dumps.values()), default=0) - newest
    pause = max((dump.pause for dump in dumps.values()), default=0)
    timeout = max((dump.timeout for dump in dumps.values()), default=0)
    if not 0 <= silent < min(pause, timeout // 2 or pause):
        return ""
    return (
        f"the newest call is from {silent / 1e9:.2g} s before the dumps were written, and calls paused for "
        f"{pause / 1e9:.2g} s before: the job may have been going on, so nobody is named for being late"
    )


def _comparable(dumps: Mapping[int, Dump]) -> dict[int, Dump]:
    """Return the dumps whose times are of one clock: a file that is older than what is in it has its own from another.

    So has one from an archive of another time zone, or of a host whose clock is ahead.
    """
    return {rank: dump for rank, dump in dumps.items() if not 0 < dump.written < dump.span[1]}


def _apart(dumps: Iterable[Dump]) -> list[list[Dump]]:
    """Return the dumps in order of time, those together between whose calls there is no gap."""
    ordered = sorted(dumps, key=lambda dump: dump.span)
    found: list[list[Dump]] = []
    end = 0
    for dump in ordered:
        if not found or dump.span[0] > end + _GAP_NS:
            found.append([])
        found[-1].append(dump)
        end = max(end, dump.span[1])
    return found


def _repeat(earlier: Sequence[Dump], later: Sequence[Dump]) -> bool:
    """Return whether a group counts from a number again that it had reached before."""
    gap = min(dump.span[0] for dump in later) - max(dump.span[1] for dump in earlier)
    late = gap > max(dump.timeout for dump in (*earlier, *later))
    reached = _highest((group, numbers[1]) for dump in earlier for group, numbers in dump.numbers.items())
    done_before, done_after = (
        _highest((group, _done(dump, group, numbers[1])) for dump in dumps for group, numbers in dump.numbers.items())
        for dumps in (earlier, later)
    )
    first = _highest((group, -numbers[0]) for dump in later for group, numbers in dump.numbers.items())
    return any(
        -number <= reached.get(group, -1) and (late or -number <= max(done_before[group], done_after[group]))
        for group, number in first.items()
    )


def _highest(numbers: Iterable[tuple[Group, int]]) -> dict[Group | str, int]:
    found: dict[Group | str, int] = {}
    for group, number in numbers:
        # Another attempt may have another number of ranks.
        key = group.name if group.is_default else group
        found[key] = max(found.get(key, number), number)
    return found


def _done(dump: Dump, group: Group, newest: int) -> int:
    """Return up to which number a rank is done with the collectives of a group."""
    return min((each.sequence - 1 for each in dump.pending if each.group == group), default=newest)
