"""What an answer of RAS says of the ranks of a job, as far as their numbers in the job are known.

The rank of a communicator's member is a number in that communicator. In one over all ranks it is the rank of the job,
which known processes have to confirm; elsewhere host, process and GPU say who it is.

Equal counts prove nothing: all may hang in the collective that all have issued. Unequal ones show who has not issued
what another member has, and so keeps it waiting. A rank that has itself issued what another one has not may wait as
well, so it is not listed; nor is one of a communicator of which RAS knows a part. Sends and receives are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from laggard_exporter.ras.answer import AWAY, Answer, Communicator, Place, State


class Behind(NamedTuple):
    """A rank that has issued fewer collectives than another member of a communicator, and more than nobody in any."""

    rank: int
    communicator: str
    issued: int
    most: int
    """What the member has issued that is ahead of all."""


class Missing(NamedTuple):
    """A rank that RAS could not reach, though it reached more than half of the job."""

    rank: int
    dead: bool


@dataclass(frozen=True)
class Facts:
    """What an answer says of the ranks of a job."""

    behind: tuple[Behind, ...] = ()
    missing: tuple[Missing, ...] = ()
    unnamed: int = 0
    """Ranks that are behind and whose numbers in the job are not known."""
    partial: int = 0
    """Communicators that start, whose members did not all answer or call different things: none of them is behind."""


def known_places(answer: Answer, ranks: Mapping[int, int], is_here: Callable[[str], bool]) -> dict[Place, int]:
    """Return the places of processes of this host whose ranks are known.

    Args:
        answer: of RAS.
        ranks: by process, as each numbers itself.
        is_here: whether an address is one of this host.
    """
    places = {member.place for communicator in answer.communicators for member in communicator.members}
    here = {host: is_here(host) for host in {place.host for place in places if place.pid in ranks}}
    mine = {place for place in places if place.pid in ranks and here[place.host]}
    # A process with several GPUs is several members; which of them is the rank is not known.
    counts = Counter(place.pid for place in mine)
    return {place: ranks[place.pid] for place in mine if counts[place.pid] == 1}


def facts(answer: Answer, world_size: int, known: Mapping[Place, int]) -> Facts:
    """Return what an answer says of a job of this size. ``known`` has the ranks of some places."""
    worlds = [each for each in answer.communicators if _is_world(each, world_size, known)]
    numbers = _numbers(worlds, known)
    found = _behind(answer.communicators)
    behind = sorted(Behind(numbers[place], *more) for place, more in found.items() if place in numbers)
    partial = sum(_kind(each) is _Kind.PARTIAL for each in answer.communicators)
    return Facts(tuple(behind), tuple(_missing(worlds)), len(found) - len(behind), partial)


def agreed(one: Facts, other: Facts) -> Facts:
    """Return what both of two answers of a job say: who goes on issues more, and anybody may be late once."""
    dead = dict(other.missing)
    missing = tuple(Missing(rank, known and dead[rank]) for rank, known in one.missing if rank in dead)
    return Facts(tuple(each for each in one.behind if each in other.behind), missing, other.unnamed, other.partial)


def _is_world(communicator: Communicator, world_size: int, known: Mapping[Place, int]) -> bool:
    """Return whether it is over all ranks, and numbers those that are known as the job does."""
    pairs = [(member.rank, known[member.place]) for member in communicator.members if member.place in known]
    confirmed = all(one == other for one, other in pairs) and bool(pairs or not known)
    return communicator.size == world_size == len(communicator.members) and confirmed


def _numbers(worlds: Iterable[Communicator], known: Mapping[Place, int]) -> dict[Place, int]:
    """Return the rank in the job of each place that has one and no more than one."""
    found: defaultdict[Place, set[int]] = defaultdict(set)
    for place, rank in known.items():
        found[place].add(rank)
    for communicator in worlds:
        for member in communicator.members:
            found[member.place].add(member.rank)
    # RAS writes -1 for a process that it does not know.
    return {place: min(ranks) for place, ranks in found.items() if len(ranks) == 1 and place.pid > 0}


class _Kind(Enum):
    """Whether the counts of a communicator's members can be compared."""

    WHOLE = "whole"
    #: Its members may wait for each other in it, and nobody knows who for whom.
    PARTIAL = "partial"
    #: It ends, or some have left it: nobody waits in it.
    OVER = "over"


def _kind(communicator: Communicator) -> _Kind:
    states = {member.state for member in communicator.members}
    if states & {*AWAY, State.STARTING} or len(communicator.members) < communicator.size:
        return _Kind.PARTIAL
    if states & {State.ENDING, State.LEFT}:
        return _Kind.OVER
    ordered = sorted(communicator.members, key=lambda member: member.issued)
    comparable = all(_at_most(one.counts, other.counts) for one, other in pairwise(ordered))
    return _Kind.WHOLE if comparable else _Kind.PARTIAL


def _at_most(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return one.keys() == other.keys() and all(count <= other[name] for name, count in one.items())


def _behind(communicators: Iterable[Communicator]) -> dict[Place, tuple[str, int, int]]:
    """Return for each place that is behind somewhere and ahead nowhere: where most, what it issued, and the most."""
    behind: dict[Place, tuple[str, int, int]] = {}
    others: set[Place] = set()
    for communicator in communicators:
        kind, members = _kind(communicator), communicator.members
        if kind is _Kind.PARTIAL:
            others.update(member.place for member in members)
        if kind is not _Kind.WHOLE:
            continue
        least, most = (choose((member.issued for member in members), default=0) for choose in (min, max))
        others.update(member.place for member in members if member.issued > least)
        for member in members if most > least else ():
            _, issued, furthest = behind.get(member.place, ("", 0, 0))
            if most - member.issued > furthest - issued:
                behind[member.place] = (communicator.identity, member.issued, most)
    return {place: found for place, found in behind.items() if place not in others}


def _missing(worlds: Iterable[Communicator]) -> list[Missing]:
    found: dict[int, bool] = {}
    for world in worlds:
        away = {member.rank: member.state is State.DEAD for member in world.members if member.state in AWAY}
        # Who reaches at most half of the job may be the one that is cut off.
        if 2 * len(away) < world.size:
            for rank, dead in away.items():
                found[rank] = found.get(rank, False) or dead
    return [Missing(rank, dead) for rank, dead in sorted(found.items())]
