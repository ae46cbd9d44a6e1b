"""Who keeps a job from going on, by what its ranks wait for.

A rank waits in the first collective of a group that is not done on it, for the members that have not issued it; and in
a send or receive that is not done, for the peer that has not issued the other side of it. Whoever is waited for and
waits for nobody is the culprit; whoever is late only because it waits itself is not. Where the evidence does not
decide, there is no culprit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from laggard_exporter.hang.absent import UNTIMED, why_not_proven
from laggard_exporter.hang.attempts import of_earlier_attempts, of_earlier_moments, why_going
from laggard_exporter.hang.dump import Dump, Group, Operation, Transfer
from laggard_exporter.hang.evidence import Evidence, Wait, everybody_of, evidence_of, members_of, newest_of

#: All that a rank waits in has been issued by all who are known to be in it.
_COMPLETE = "is in a collective of which no member is known to be missing"
#: Words of one rank to those of several.
_VERBS = {" is": " are", " has": " have", " waits": " wait", " does": " do"}
_ITS = re.compile(r"\bits (\w+)( is\b| does\b)?")
#: Spans of ranks that a person reads.
_SPANS = 16


class Reason(Enum):
    """Why a rank is a culprit."""

    OUTSIDE = "is in no collective"
    ALONE = "has not done what all others have done"
    NOT_STARTED = "has issued it, its device has not begun"
    MISMATCH = "calls another collective than most"
    SIZE = "brings another size than most"
    NO_DUMP = "left no dump"
    GONE = "has ended"


#: Reasons that hold at any moment: no call that differs, and no process that has ended, is merely late.
_NEVER_LATE = {Reason.MISMATCH, Reason.SIZE, Reason.GONE}


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
    #: Members of a collective call different things, which is why all else waits.
    differs: bool = False

    def name(self, rank: int, reason: Reason, wait: Wait, newest: int | None, difference: str = "") -> None:
        known = self.culprits.get(rank)
        if known is None or len(known.wait.waiting) < len(wait.waiting):
            self.culprits[rank] = Culprit(rank, reason, wait, newest, difference)


def judge(dumps: Mapping[int, Dump], ranks: int | None = None, *, gone: Collection[int] = ()) -> Verdict:
    """Return who keeps the job from going on.

    Args:
        dumps: what each rank wrote.
        ranks: of the job; without it, as many as the dumps speak of.
        gone: ranks whose processes are known to have ended while others live. Their dumps, of before, do not count.
    """
    everybody = everybody_of(dumps.values(), ranks)
    found = _Found()
    foreign = of_earlier_attempts(dumps)
    if foreign:
        found.remarks.append(f"{_dumps_of(foreign)} of an earlier attempt, so nothing is known there of this one")
    given, dumps = len(dumps), {rank: dump for rank, dump in dumps.items() if rank not in foreign.union(gone)}
    members = members_of(dumps.values(), everybody)
    early = of_earlier_moments(dumps, members)
    if early:
        found.remarks.append(
            f"{_dumps_of(early)} of a moment before others went on, so what is open there now is not known"
        )
    dumps = {rank: dump for rank, dump in dumps.items() if rank not in early}
    foreign |= early
    evidence = evidence_of(dumps, members)
    absent: list[tuple[int, Wait]] = []
    for wait in evidence.waits:
        for rank in wait.unknown:
            found.excuses[rank] = f"has no entry of group {wait.group} left: its dump is too short"
        _look_at_missing(wait, evidence, absent, found)
        # Those who left no dump may have issued it.
        if not wait.transfer and dumps.keys().isdisjoint(wait.missing):
            _look_at_complete(wait, evidence, found)
    _look_at_absent([each for each in absent if each[0] not in foreign], everybody, evidence, gone, found)
    _excuse_the_late(dumps, found)
    if not found.culprits:
        _look_for_circle(evidence, found)
        sides_differ = any(_differ(*sides) for sides in evidence.met)
        if found.complete and not evidence.held_by and not found.differs and not sides_differ:
            found.remarks.append(_all_have_issued(found.complete, evidence.members))
        if evidence.met and not evidence.held_by and (sides_differ or not found.differs):
            found.remarks.append(_both_have_issued(evidence.met))
        if not evidence.waits and not evidence.met:
            found.remarks.append(_nothing_pending(evidence))
    culprits = sorted(found.culprits.values(), key=lambda culprit: (-len(culprit.wait.waiting), culprit.rank))
    ordered = sorted(evidence.waits, key=lambda wait: (-len(wait.waiting), str(wait.group), wait.sequence))
    remarks = dict.fromkeys([*found.remarks, *_excused(found)])
    return Verdict(tuple(culprits), tuple(ordered), tuple(remarks), len(everybody), given)


def _excuse_the_late(dumps: Mapping[int, Dump], found: _Found) -> None:
    going = why_going(dumps)
    if going:
        found.remarks.append(going)
        found.culprits = {rank: each for rank, each in found.culprits.items() if each.reason in _NEVER_LATE}


def _excused(found: _Found) -> Iterator[str]:
    """Yield why ranks that are waited for are no culprits, those with one reason together."""
    excuses: dict[str, set[int]] = defaultdict(set)
    for rank, why in found.excuses.items():
        if rank not in found.culprits:
            excuses[why].add(rank)
    for why, ranks in excuses.items():
        yield f"{ranks_as_text(ranks)} {_plural(why, len(ranks))}"


def spans(ranks: Iterable[int]) -> str:
    """Return ranks as text: ``0-3, 7``, of many spans the first: ``0, 8, 16 and 61 more``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    more = sum(last - first + 1 for first, last in parts[_SPANS:])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts[:_SPANS])
    return f"{shown} and {more} more" if more else shown


def ranks_as_text(ranks: Iterable[int]) -> str:
    """Return ranks as text, with the word: ``rank 7``, ``ranks 0-3, 7``."""
    known = set(ranks)
    return f"rank{'s' if len(known) != 1 else ''} {spans(known)}"


def _look_at_missing(wait: Wait, evidence: Evidence, absent: list[tuple[int, Wait]], found: _Found) -> None:
    for rank in wait.missing:
        dump = evidence.dumps.get(rank)
        if dump is None:
            absent.append((rank, wait))
        elif rank not in evidence.held_by:  # else late because it waits itself
            why = _excuse(dump, wait, evidence)
            if why:
                found.excuses[rank] = why
            else:
                newest = None if wait.transfer else newest_of(dump, wait.group) or 0
                found.name(rank, Reason.OUTSIDE, wait, newest)


def _excuse(dump: Dump, wait: Wait, evidence: Evidence) -> str:
    """Return why a rank that is waited for and waits for nobody is no culprit, nothing where it is one."""
    newest, group = newest_of(dump, wait.group), wait.group
    # What others still wait in was given up where it is done.
    ended = evidence.ended.get(group, set()) - {wait.sequence}
    untimed = not group.gloo and not any(call.started for calls in evidence.pending.values() for call in calls.values())
    peers = "of an unknown peer" if any(each.peer is None for each in dump.transfers) else "that both sides have issued"
    known = [
        (dump.damaged, "has a dump of which not all entries can be read"),
        (
            dump.transfers,
            f"is in a send or receive {peers}",
        ),
        (dump.pending and untimed, f"{_COMPLETE}; {UNTIMED}"),
        (dump.pending, _COMPLETE),
        (dump.calling, "is in a call of torch.distributed that its recorder does not show"),
        (
            evidence.hidden and group.gloo and dump.calling is None,
            "may be in a send or receive of gloo, which its recorder does not show",
        ),
        (
            any(number > (newest or 0) for number in ended) and not wait.transfer,
            f"wrote its dump before others ended collectives of group {group}",
        ),
    ]
    return next((why for holds, why in known if holds), "")


def _look_at_complete(wait: Wait, evidence: Evidence, found: _Found) -> None:
    """Look at a collective that every member with a dump has issued and that is not done on all of them."""
    operations = evidence.pending[wait.group, wait.sequence]
    members = evidence.members[wait.group].difference(wait.unknown, wait.missing)
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
    elif not alone and 0 < len(not_started) < len(operations) - len(not_started):
        reason, few = Reason.NOT_STARTED, not_started
    else:
        found.complete += [wait] if not wait.unknown and not wait.missing else []
        return
    for rank in few:
        why = _why_late(rank, wait, reason, evidence)
        if why:
            found.excuses[rank] = why
        else:
            found.name(rank, reason, wait, evidence.dumps[rank].newest[wait.group])


def _why_late(rank: int, wait: Wait, reason: Reason, evidence: Evidence) -> str:
    """Return what else may make a rank late in a collective that it has issued, nothing where nothing does."""
    dump, held_by = evidence.dumps[rank], evidence.held_by.get(rank, ())
    # A device that waits in a call of another group is late here because of that.
    known = [
        (any(each is not wait for each in held_by), "waits for others in another call"),
        (held_by, "waits there for a rank without a dump"),
        (dump.short, "has a dump that is too short to show what its device does"),
        (dump.transfers, "is in a send or receive"),
        (any(operation.started for operation in dump.pending), "waits with its device in another group"),
    ]
    holds = known if reason is Reason.NOT_STARTED else known[:2]
    return next((why for applies, why in holds if applies), "")


def _call_different_things(wait: Wait, operations: Mapping[int, Operation], evidence: Evidence, found: _Found) -> bool:
    """Name those who call something else than most, or bring another size; return whether any do.

    A member may be done with what it calls: the root of a broadcast waits for nobody.
    """
    key = wait.group, wait.sequence
    done = ((rank, dump.passed) for rank in evidence.members[wait.group] if (dump := evidence.dumps.get(rank)))
    operations = {**{rank: passed[key] for rank, passed in done if passed and key in passed}, **operations}
    calls = Counter(map(str, operations.values()))
    names = {operation.name for operation in operations.values()}
    sides = {tuple(side for side, _ in operation.shape) for operation in operations.values()}
    # What a dump does not say is no difference.
    if len(calls) == 1 or (len(names) == 1 and len(sides) > 1):
        return False
    ((most, count),) = calls.most_common(1)
    found.differs = True
    if 2 * count <= len(operations) + len(wait.missing):
        callers = " and ".join(
            f"{ranks_as_text(rank for rank, each in operations.items() if str(each) == call)} ({call})"
            for call in calls
        )
        found.remarks.append(f"in {wait} {callers} call different things; no side is most")
        return True
    (usual,) = {each.name for each in operations.values() if str(each) == most}
    for rank, each in operations.items():
        if str(each) != most:
            reason = Reason.SIZE if each.name == usual else Reason.MISMATCH
            found.name(rank, reason, wait, evidence.dumps[rank].newest[wait.group], f"{each}, most {most}")
    return True


def _all_have_issued(complete: Sequence[Wait], members: Mapping[Group, set[int]]) -> str:
    wait = max(complete, key=lambda each: len(each.waiting))
    others = len(complete) - 1
    more = f", and of {others} more collective{'s' * (others > 1)}" if others else ""
    known = members[wait.group]
    if wait.group.members is None and not wait.group.is_default:
        has_issued = _plural("has issued", len(known))
        return f"{ranks_as_text(known)} {has_issued} {wait}{more}: who else is in the group is not known"
    return f"all {len(known)} members have issued {wait}{more}: no rank is missing, look at the network"


def _plural(why: str, ranks: int) -> str:
    """Return what is known of a rank, in the words for a group of ranks."""
    if ranks == 1:
        return why
    verb, _, rest = why.partition(" ")
    rest = _ITS.sub(lambda found: f"their {found[1]}s{_VERBS.get(found[2], '')}", rest)
    return f"{_VERBS.get(f' {verb}', f' {verb}')[1:]} {rest}"


def _dumps_of(ranks: Iterable[int]) -> str:
    known = set(ranks)
    return f"the dump of {ranks_as_text(known)} is" if len(known) == 1 else f"the dumps of {ranks_as_text(known)} are"


def _look_at_absent(
    absent: list[tuple[int, Wait]], everybody: set[int], evidence: Evidence, gone: Collection[int], found: _Found
) -> None:
    """Judge ranks without a dump that are waited for: culprits only where something else proves it."""
    ended = [(rank, wait) for rank, wait in absent if rank in gone]
    if ended:
        # As for the alert: who is dead comes first.
        found.culprits.clear()
        for rank, wait in ended:
            found.name(rank, Reason.GONE, wait, None)
    waited_for = {rank for rank, _ in absent}.difference(gone)
    if not waited_for:
        return
    without = everybody.difference(evidence.dumps, gone)
    if found.culprits:
        found.remarks.append(f"{ranks_as_text(waited_for)} left no dump, so nothing is known there")
        return
    why = why_not_proven(min(without), evidence) if len(without) == 1 else ""
    if why or len(without) > 1:
        found.remarks.append(f"not told apart: {ranks_as_text(without)} left no dump" + (f"; {why}" if why else ""))
        return
    for rank, wait in absent:
        found.name(rank, Reason.NO_DUMP, wait, None)


def _look_for_circle(evidence: Evidence, found: _Found) -> None:
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
    if not circle:
        return
    in_transfers = any(wait.transfer for rank in circle for wait in held_by[rank])
    found.remarks.append(
        f"ranks {spans(circle)} wait for each other in "
        + (
            "sends and receives: their order differs, or one has issued one early and is in its own code"
            if in_transfers
            else "different collectives: they call them in different order"
        )
    )


def _both_have_issued(met: Sequence[tuple[Transfer, Transfer]]) -> str:
    first, other = min(met, key=lambda sides: (not _differ(*sides), sides[0].name, str(sides[0].group)))
    if _differ(first, other):
        sides = f"{first.name} of group {first.group} is of {first.shape}, and {other.name} of {other.shape}"
        return f"{sides}: the sides of a transfer must agree"
    others = sum(each.name.startswith("send ") for each, _ in met) - 1
    more = f", and of {others} more transfer{'s' * (others > 1)}" if others > 0 else ""
    return f"both sides have issued {first.name} of group {first.group}{more}: no rank is missing, look at the network"


def _differ(one: Transfer, other: Transfer) -> bool:
    # What a dump does not say is no difference.
    return bool(one.shape and other.shape) and one.shape != other.shape


def _nothing_pending(evidence: Evidence) -> str:
    if any(dump.transfers for dump in evidence.dumps.values()):
        return "only sends and receives are not done, whose peers are not known"
    for group, numbers in evidence.ended.items():
        behind = [
            rank
            for rank in evidence.members[group] & evidence.dumps.keys()
            if (newest_of(evidence.dumps[rank], group) or 0) < max(numbers)
        ]
        if behind:
            has_not = _plural("has not issued it", len(behind))
            return (
                f"collective {max(numbers)} of group {group} is over on some members, and {ranks_as_text(behind)} "
                f"{has_not}: it was aborted, or the dumps are of different moments"
            )
    calling = {rank for rank, dump in evidence.dumps.items() if dump.calling}
    if calling and len(calling) < len(evidence.dumps):
        is_in = _plural("is in a call of torch.distributed that its recorder does not show", len(calling))
        others = evidence.dumps.keys() - calling
        return f"{ranks_as_text(calling)} {is_in}, and {ranks_as_text(others)} {_plural('is in none', len(others))}"
    return "no collective is waited in"
