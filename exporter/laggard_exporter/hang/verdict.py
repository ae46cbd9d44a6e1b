"""Who keeps a job from going on, by what its ranks wait for.

A rank waits in the first collective of a group that is not done on it, for the members that have not issued it. Whoever
is waited for and waits for nobody is the culprit; whoever is late only because it waits itself is not. Sends and
receives prove nothing: a pipeline waits in them all the time. Where the evidence does not decide, there is no culprit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from laggard_exporter.hang.attempts import of_other_attempts
from laggard_exporter.hang.dump import Dump, Group, Operation


class Reason(Enum):
    """Why a rank is a culprit."""

    OUTSIDE = "is in no collective"
    ALONE = "has not done what all others have done"
    NOT_STARTED = "has issued it, its device has not begun"
    MISMATCH = "calls another collective than most"
    SIZE = "brings another size than most"
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
    #: Where it differs from most: what it calls there or brings to it, and what most do.
    difference: str = ""


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
    #: Collectives that all members have issued, with nothing to tell them apart.
    complete: list[Wait] = field(default_factory=list[Wait])

    def name(self, rank: int, reason: Reason, wait: Wait, newest: int | None, difference: str = "") -> None:
        known = self.culprits.get(rank)
        if known is None or len(known.wait.waiting) < len(wait.waiting):
            self.culprits[rank] = Culprit(rank, reason, wait, newest, difference)


@dataclass(frozen=True)
class _Evidence:
    dumps: Mapping[int, Dump]
    members: Mapping[Group, set[int]]
    waits: list[Wait]
    #: What each rank calls in the collectives in which ranks wait.
    pending: Mapping[tuple[Group, int], Mapping[int, Operation]]
    #: The collectives that a rank waits in for somebody.
    held_by: Mapping[int, list[Wait]]


def judge(dumps: Mapping[int, Dump], ranks: int | None = None) -> Verdict:
    """Return who keeps the job from going on.

    Args:
        dumps: what each rank wrote.
        ranks: of the job; without it, as many as the dumps speak of.
    """
    everybody = _everybody(dumps.values(), ranks)
    found = _Found()
    foreign = of_other_attempts(dumps)
    if foreign:
        found.remarks.append(
            f"{_dumps_of(foreign)} of another attempt by the times of its collectives, so nothing is known there"
        )
    given, dumps = len(dumps), {rank: dump for rank, dump in dumps.items() if rank not in foreign}
    evidence = _evidence(dumps, _members(dumps.values(), everybody))
    absent: list[tuple[int, Wait]] = []
    for wait in evidence.waits:
        if wait.missing:
            _look_at_missing(wait, evidence, absent, found)
        else:
            _look_at_complete(wait, evidence, found)
    _look_at_absent([each for each in absent if each[0] not in foreign], dumps, everybody, found)
    if not found.culprits:
        _look_for_circle(evidence, found)
        if found.complete and not evidence.held_by:
            found.remarks.append(_all_have_issued(found.complete, evidence.members))
        if not evidence.waits:
            found.remarks.append(_nothing_pending(dumps.values()))
    culprits = sorted(found.culprits.values(), key=lambda culprit: (-len(culprit.wait.waiting), culprit.rank))
    ordered = sorted(evidence.waits, key=lambda wait: (-len(wait.waiting), str(wait.group), wait.sequence))
    remarks = dict.fromkeys([*found.remarks, *_excused(found)])
    return Verdict(tuple(culprits), tuple(ordered), tuple(remarks), len(everybody), given)


def _excused(found: _Found) -> Iterator[str]:
    """Yield why ranks that are waited for are no culprits, those with one reason together."""
    excuses: dict[str, set[int]] = defaultdict(set)
    for rank, why in found.excuses.items():
        if rank not in found.culprits:
            excuses[why].add(rank)
    for why, ranks in excuses.items():
        yield f"{ranks_as_text(ranks)} {_plural(why, len(ranks))}"


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
                # One that numbers its members in another way, such as by replicas, says nothing of ranks.
                if dump.rank in group.members:
                    members[group] = set(group.members)
            elif group.is_default:
                members[group] = everybody
            else:
                members[group].add(dump.rank)
    return members


def _evidence(dumps: Mapping[int, Dump], members: Mapping[Group, set[int]]) -> _Evidence:
    pending: dict[tuple[Group, int], dict[int, Operation]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for operation in dump.pending:
            if operation.group in members:
                pending[operation.group, operation.sequence][rank] = operation
    waits: list[Wait] = []
    for (group, sequence), operations in pending.items():
        arrived = {rank for rank in members[group] if rank in dumps and dumps[rank].newest.get(group, 0) >= sequence}
        names = Counter(operation.name for operation in operations.values())
        missing = tuple(sorted(members[group] - arrived))
        waits.append(Wait(group, sequence, dict(names.most_common()), tuple(sorted(operations)), missing))
    held_by: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        for rank in wait.waiting if wait.missing else ():
            held_by[rank].append(wait)
    return _Evidence(dumps, members, waits, pending, held_by)


def _look_at_missing(wait: Wait, evidence: _Evidence, absent: list[tuple[int, Wait]], found: _Found) -> None:
    for rank in wait.missing:
        dump = evidence.dumps.get(rank)
        if dump is None:
            absent.append((rank, wait))
        elif dump.damaged:
            found.excuses[rank] = "has a dump of which not all entries can be read"
        elif rank in evidence.held_by:
            continue  # late because it waits itself
        elif dump.transfers:
            found.excuses[rank] = "is in a send or receive, which does not tell whose fault it is"
        elif dump.pending:
            found.excuses[rank] = "is in a collective that all its members have issued"
        elif wait.group not in dump.newest and dump.truncated:
            found.excuses[rank] = f"has no entry of group {wait.group} left: its dump is too short"
        else:
            found.name(rank, Reason.OUTSIDE, wait, dump.newest.get(wait.group, 0))


def _look_at_complete(wait: Wait, evidence: _Evidence, found: _Found) -> None:
    """Look at a collective that every member has issued and that is not done on all of them."""
    operations, members = evidence.pending[wait.group, wait.sequence], evidence.members[wait.group]
    first = (
        operation.sequence
        for rank in members & evidence.dumps.keys()
        for operation in evidence.dumps[rank].pending
        if operation.group == wait.group
    )
    if min(first) < wait.sequence or _call_different_things(wait, operations, evidence, found):
        return  # an earlier one of the group holds this one up
    not_started = [rank for rank, operation in operations.items() if not operation.started]
    alone = len(operations) == 1 < len(members) or 2 * len(operations) < len(members)
    if alone and not any(evidence.dumps[rank].short for rank in members):
        reason, few = Reason.ALONE, list(operations)
    elif not alone and 0 < len(not_started) < len(operations) / 2:
        reason, few = Reason.NOT_STARTED, not_started
    else:
        found.complete.append(wait)
        return
    for rank in few:
        dump = evidence.dumps[rank]
        # A device that waits in a collective of another group is late here because of that.
        busy = dump.short or dump.transfers or any(operation.started for operation in dump.pending)
        if rank in evidence.held_by or (reason is Reason.NOT_STARTED and busy):
            found.excuses[rank] = "waits with its device in another group"
        else:
            found.name(rank, reason, wait, dump.newest[wait.group])


def _call_different_things(wait: Wait, operations: Mapping[int, Operation], evidence: _Evidence, found: _Found) -> bool:
    """Name those who call something else than most, or bring another size; return whether any do."""
    calls = Counter(map(str, operations.values()))
    names = {operation.name for operation in operations.values()}
    sides = {tuple(side for side, _ in operation.shape) for operation in operations.values()}
    # What a dump does not say is no difference.
    if len(calls) == 1 or (len(names) == 1 and len(sides) > 1):
        return False
    ((most, count),) = calls.most_common(1)
    if 2 * count <= len(operations):
        callers = " and ".join(
            f"{ranks_as_text(rank for rank, each in operations.items() if str(each) == call)} ({call})"
            for call in calls
        )
        found.remarks.append(f"in {_where(wait)} {callers} call different things; no side is most")
        return True
    (usual,) = {each.name for each in operations.values() if str(each) == most}
    for rank, each in operations.items():
        if str(each) != most:
            reason = Reason.SIZE if each.name == usual else Reason.MISMATCH
            found.name(rank, reason, wait, evidence.dumps[rank].newest[wait.group], f"{each}, most {most}")
    return True


def _where(wait: Wait) -> str:
    return f"{' / '.join(wait.operations)} {wait.sequence} of group {wait.group}"


def _all_have_issued(complete: Sequence[Wait], members: Mapping[Group, set[int]]) -> str:
    wait = max(complete, key=lambda each: len(each.waiting))
    others = len(complete) - 1
    more = f", and of {others} more collective{'s' * (others > 1)}" if others else ""
    all_members = f"all {len(members[wait.group])} members"
    return f"{all_members} have issued {_where(wait)}{more}: no rank is missing, look at the network"


def _plural(why: str, ranks: int) -> str:
    """Return what is known of a rank as said of so many."""
    verb, _, rest = why.partition(" ")
    return why if ranks == 1 else f"{ {'is': 'are', 'has': 'have', 'waits': 'wait'}[verb] } {rest}"


def _dumps_of(ranks: Iterable[int]) -> str:
    known = set(ranks)
    return f"the dump of {ranks_as_text(known)} is" if len(known) == 1 else f"the dumps of {ranks_as_text(known)} are"


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


def _look_for_circle(evidence: _Evidence, found: _Found) -> None:
    """Say which ranks wait for each other, where nobody else is to blame."""
    waits, held_by, dumps = evidence.waits, evidence.held_by, evidence.dumps
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
