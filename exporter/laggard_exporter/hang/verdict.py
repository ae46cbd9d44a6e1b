"""Who keeps a job from going on, by what its ranks wait for.

A rank waits in the first collective of a group that is not done on it, for the members that have not issued it. Whoever
is waited for and waits for nobody is the culprit; whoever is late only because it waits itself is not. Sends and
receives prove nothing: a pipeline waits in them all the time. Where the evidence does not decide, there is no culprit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from laggard_exporter.hang.dump import Dump, Group, Operation


class Reason(Enum):
    """Why a rank is a culprit."""

    OUTSIDE = "is in no collective"
    ALONE = "has not done what all others have done"
    NOT_STARTED = "has issued it, its device has not begun"
    MISMATCH = "calls another collective than most"
    NO_DUMP = "left no dump"


@dataclass(frozen=True)
class Wait:
    """A collective in which ranks wait."""

    group: Group
    sequence: int
    #: What the ranks call, with how many of them do; several where they disagree.
    operations: Mapping[str, int]
    waiting: tuple[int, ...]
    #: Members that have not issued it.
    missing: tuple[int, ...]


@dataclass(frozen=True)
class Culprit:
    """A rank that others wait for, the reason, and the collective that most of them wait in."""

    rank: int
    reason: Reason
    wait: Wait
    #: Number of the newest collective that the rank has issued in this group, `None` without a dump.
    newest: int | None


@dataclass(frozen=True)
class Verdict:
    """What the dumps say together."""

    culprits: tuple[Culprit, ...] = ()
    waits: tuple[Wait, ...] = ()
    #: What is known where no rank, or not every rank, can be named.
    remarks: tuple[str, ...] = ()
    ranks: int = 0
    dumps: int = 0


@dataclass
class _Found:
    culprits: dict[int, Culprit] = field(default_factory=dict[int, Culprit])
    remarks: list[str] = field(default_factory=list[str])
    #: Why a rank that is waited for is no culprit, unless something else makes it one.
    excuses: dict[int, str] = field(default_factory=dict[int, str])

    def name(self, rank: int, reason: Reason, wait: Wait, newest: int | None) -> None:
        known = self.culprits.get(rank)
        if known is None or len(known.wait.waiting) < len(wait.waiting):
            self.culprits[rank] = Culprit(rank, reason, wait, newest)


def judge(dumps: Mapping[int, Dump], ranks: int | None = None) -> Verdict:
    """Return who keeps the job from going on.

    Args:
        dumps: what each rank wrote.
        ranks: of the job; without it, as many as the dumps speak of.
    """
    everybody = _everybody(dumps.values(), ranks)
    members = _members(dumps.values(), everybody)
    waits, pending = _waits(dumps, members)
    found = _Found()
    # The collectives that a rank waits in for somebody.
    held_by: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.missing:
            for rank in wait.waiting:
                held_by[rank].append(wait)
    absent: list[tuple[int, Wait]] = []
    for wait in waits:
        if wait.missing:
            _look_at_missing(wait, dumps, held_by, absent, found)
        else:
            _look_at_complete(wait, dumps, members[wait.group], pending, found)
    _look_at_absent(absent, dumps, everybody, found)
    if not found.culprits:
        _look_for_circle(waits, held_by, dumps, found)
        if not waits:
            found.remarks.append(_nothing_pending(dumps.values()))
    remarks = [*found.remarks, *(f"rank {r} {why}" for r, why in found.excuses.items() if r not in found.culprits)]
    culprits = sorted(found.culprits.values(), key=lambda culprit: (-len(culprit.wait.waiting), culprit.rank))
    ordered = sorted(waits, key=lambda wait: (-len(wait.waiting), str(wait.group), wait.sequence))
    return Verdict(tuple(culprits), tuple(ordered), tuple(dict.fromkeys(remarks)), len(everybody), len(dumps))


def spans(ranks: Iterable[int]) -> str:
    """Return ranks as text: ``0-3, 7``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def ranks_as_text(ranks: Iterable[int]) -> str:
    """Return ranks as text, with the word: ``rank 7``, ``ranks 0-3, 7``."""
    known = set(ranks)
    return f"rank{'s' if len(known) != 1 else ''} {spans(known)}"


def _everybody(dumps: Iterable[Dump], ranks: int | None) -> set[int]:
    if ranks is not None:
        return set(range(ranks))
    known = {dump.rank for dump in dumps}
    known |= {rank for dump in dumps for group in dump.newest for rank in group.members or ()}
    return set(range(max(known) + 1)) if known else set()


def _members(dumps: Iterable[Dump], everybody: set[int]) -> dict[Group, set[int]]:
    """Return the members of each group: as the dumps say, or else whoever has used it."""
    members: dict[Group, set[int]] = defaultdict(set)
    for dump in dumps:
        for group in dump.newest:
            if group.members is not None:
                members[group] = set(group.members)
            elif group.is_default:
                members[group] = everybody
            else:
                members[group].add(dump.rank)
    return members


def _waits(
    dumps: Mapping[int, Dump], members: Mapping[Group, set[int]]
) -> tuple[list[Wait], dict[tuple[Group, int], dict[int, Operation]]]:
    pending: dict[tuple[Group, int], dict[int, Operation]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for operation in dump.pending:
            pending[operation.group, operation.sequence][rank] = operation
    waits: list[Wait] = []
    for (group, sequence), operations in pending.items():
        arrived = {rank for rank in members[group] if rank in dumps and dumps[rank].newest.get(group, 0) >= sequence}
        names = Counter(operation.name for operation in operations.values())
        missing = tuple(sorted(members[group] - arrived))
        waits.append(Wait(group, sequence, dict(names.most_common()), tuple(sorted(operations)), missing))
    return waits, pending


def _look_at_missing(
    wait: Wait,
    dumps: Mapping[int, Dump],
    held_by: Mapping[int, list[Wait]],
    absent: list[tuple[int, Wait]],
    found: _Found,
) -> None:
    for rank in wait.missing:
        dump = dumps.get(rank)
        if dump is None:
            absent.append((rank, wait))
        elif rank in held_by:
            continue  # late because it waits itself
        elif dump.transfers:
            found.excuses[rank] = "is in a send or receive, which does not tell whose fault it is"
        elif dump.pending:
            found.excuses[rank] = "is in a collective that all its members have issued"
        elif wait.group not in dump.newest and dump.truncated:
            found.excuses[rank] = f"has no entry of group {wait.group} left: its dump is too short"
        else:
            found.name(rank, Reason.OUTSIDE, wait, dump.newest.get(wait.group, 0))


def _look_at_complete(
    wait: Wait,
    dumps: Mapping[int, Dump],
    members: set[int],
    pending: Mapping[tuple[Group, int], Mapping[int, Operation]],
    found: _Found,
) -> None:
    """Look at a collective that every member has issued and that is not done on all of them."""
    operations = pending[wait.group, wait.sequence]

    def name(ranks: Iterable[int], reason: Reason) -> None:
        for rank in ranks:
            found.name(rank, reason, wait, dumps[rank].newest[wait.group])

    calls = Counter((operation.name, operation.shape) for operation in operations.values())
    where = f"{' / '.join(wait.operations)} {wait.sequence} of group {wait.group}"
    (most, count), *others = calls.most_common()
    if others:
        if 2 * count <= len(operations):
            sides = [
                ranks_as_text(r for r, each in operations.items() if (each.name, each.shape) == call) for call in calls
            ]
            found.remarks.append(f"in {where} {' and '.join(sides)} call different things; no side is most")
        else:
            name((r for r, each in operations.items() if (each.name, each.shape) != most), Reason.MISMATCH)
        return
    not_started = [rank for rank, operation in operations.items() if not operation.started]
    if len(operations) == 1 < len(members) or 2 * len(operations) < len(members):
        name(operations, Reason.ALONE)
    elif 0 < len(not_started) < len(operations) / 2:
        # A device that waits in a collective of another group is late here because of that.
        busy = {rank for rank in not_started if any(operation.started for operation in dumps[rank].pending)}
        found.excuses |= dict.fromkeys(busy, "waits with its device in another group")
        name((rank for rank in not_started if rank not in busy), Reason.NOT_STARTED)
    else:
        found.remarks.append(f"all {len(members)} members have issued {where}: no rank is missing, look at the network")


def _look_at_absent(
    absent: list[tuple[int, Wait]], dumps: Mapping[int, Dump], everybody: set[int], found: _Found
) -> None:
    """Judge ranks without a dump: culprits only where nothing better is known and most others left one."""
    if not absent:
        return
    without = everybody - dumps.keys()
    if found.culprits or 2 * len(without) >= len(everybody):
        found.remarks.append(f"{ranks_as_text(rank for rank, _ in absent)} left no dump, so nothing is known there")
        return
    for rank, wait in absent:
        found.name(rank, Reason.NO_DUMP, wait, None)


def _look_for_circle(
    waits: list[Wait], held_by: Mapping[int, list[Wait]], dumps: Mapping[int, Dump], found: _Found
) -> None:
    """Say which ranks wait for each other, where nobody else is to blame."""
    # Whoever waits, in the end, for a rank that waits for nobody is not in a circle.
    held = set(held_by)
    free = {rank for wait in waits for rank in wait.missing if rank not in held} | (dumps.keys() - held)
    before = -1
    while before != len(free):
        before = len(free)
        free |= {rank for rank in held - free if any(free.intersection(wait.missing) for wait in held_by[rank])}
    circle = {rank for wait in waits for rank in wait.missing if rank in held - free}
    if circle:
        found.remarks.append(
            f"ranks {spans(circle)} wait for each other in different collectives: they call them in different order"
        )


def _nothing_pending(dumps: Iterable[Dump]) -> str:
    if any(dump.transfers for dump in dumps):
        return "only sends and receives are not done, which do not tell whose fault it is"
    return "no collective is waited in"
