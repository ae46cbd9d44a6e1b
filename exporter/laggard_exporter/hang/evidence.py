"""What the dumps of a job say together: who waits in which collective, send or receive, and for whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from laggard_exporter.hang.dump import Dump, Group, Operation, Transfer


@dataclass(frozen=True)
class Wait:
    """A collective in which ranks wait, or a send or receive in which one does."""

    group: Group
    #: Of a send or receive, the number on the rank that waits.
    sequence: int
    #: What the ranks call, with how many of them do; several where they disagree.
    operations: Mapping[str, int]
    waiting: tuple[int, ...]
    #: Members that have not issued it.
    missing: tuple[int, ...]
    #: Members whose dumps are too short to say whether they have.
    unknown: tuple[int, ...] = ()
    transfer: bool = False

    def __str__(self) -> str:
        calls = " / ".join(self.operations)
        return f"{calls} of group {self.group}" if self.transfer else f"{calls} {self.sequence} of group {self.group}"


@dataclass(frozen=True)
class Evidence:
    """Who waits for whom, and what else the dumps show."""

    dumps: Mapping[int, Dump]
    members: Mapping[Group, set[int]]
    waits: list[Wait]
    #: What each rank calls in the collectives in which ranks wait.
    pending: Mapping[tuple[Group, int], Mapping[int, Operation]]
    #: What a rank waits in for somebody.
    held_by: Mapping[int, list[Wait]]
    #: Sends and receives of which both sides were issued, with the other side.
    met: Sequence[tuple[Transfer, Transfer]]
    #: The newest collective of each group that is done on a rank and needed all members: its numbers on all ranks.
    ended: Mapping[Group, set[int]]
    #: Some rank has made sends or receives that its recorder does not show.
    hidden: bool


def everybody_of(dumps: Iterable[Dump], ranks: int | None) -> set[int]:
    """Return the ranks of the job: from its size, or those that the dumps speak of."""
    if ranks is not None:
        return set(range(ranks))
    known = {dump.rank for dump in dumps}
    known |= {rank for dump in dumps for group in dump.newest for rank in group.members or ()}
    return set(range(max(known) + 1)) if known else set()


def members_of(dumps: Iterable[Dump], everybody: set[int]) -> dict[Group, set[int]]:
    """Return the members of each group: as the dumps say, or else whoever has used it."""
    members: dict[Group, set[int]] = defaultdict(set)
    for dump in dumps:
        for group in dump.newest:
            if group.members is not None:
                # One that numbers its members in another way, such as by replicas, says nothing of ranks.
                if dump.rank in group.members:
                    members[group] = set(group.members)
            elif group.is_default:
                members[group] = everybody
            else:
                members[group].add(dump.rank)
    return members


def evidence_of(dumps: Mapping[int, Dump], members: Mapping[Group, set[int]]) -> Evidence:
    """Return what the dumps say together, given the members of each group."""
    pending: dict[tuple[Group, int], dict[int, Operation]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for operation in dump.pending:
            if operation.group in members:
                pending[operation.group, operation.sequence][rank] = operation
    waits: list[Wait] = []
    for (group, sequence), operations in pending.items():
        newest = {rank: newest_of(dumps[rank], group) for rank in members[group] & dumps.keys()}
        arrived = {rank for rank, number in newest.items() if (number or 0) >= sequence}
        unknown = {rank for rank, number in newest.items() if number is None and dumps[rank].truncated}
        names = Counter(operation.name for operation in operations.values())
        missing = sorted(members[group] - arrived - unknown)
        waiting, calls = tuple(sorted(operations)), dict(names.most_common())
        waits.append(Wait(group, sequence, calls, waiting, tuple(missing), tuple(sorted(unknown))))
    transfers, met = _transfers(dumps)
    waits += transfers
    held_by: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        for rank in wait.waiting if wait.missing else ():
            held_by[rank].append(wait)
    ended: dict[Group, set[int]] = defaultdict(set)
    for dump in dumps.values():
        for group, sequence in dump.ended.items():
            ended[group].add(sequence)
    return Evidence(dumps, members, waits, pending, held_by, met, ended, any(dump.hidden for dump in dumps.values()))


def newest_of(dump: Dump, group: Group) -> int | None:
    """Return the newest collective that a rank has issued in a group, `None` where its dump has none of it."""
    return dump.newest.get(group, dump.newest.get(replace(group, members=None)))


def _transfers(dumps: Mapping[int, Dump]) -> tuple[list[Wait], list[tuple[Transfer, Transfer]]]:
    """Return the sends and receives of which the other side was not issued, and those of which both were."""
    waits: list[Wait] = []
    met: list[tuple[Transfer, Transfer]] = []
    for rank, dump in dumps.items():
        for each in dump.transfers:
            if each.peer is None:
                continue
            others = dumps[each.peer].transfers if each.peer in dumps else ()
            sides = [(each, other) for other in others if _are_sides(each, other, rank)]
            met += sides[:1]
            if not sides:
                waits.append(Wait(each.group, each.sequence, {each.name: 1}, (rank,), (each.peer,), transfer=True))
    return waits, met


def _are_sides(one: Transfer, other: Transfer, rank: int) -> bool:
    """Return whether one, which a rank has issued, and what its peer has issued may be the sides of a transfer."""
    return one.group == other.group and one.name[:4] != other.name[:4] and other.peer in (rank, None)
