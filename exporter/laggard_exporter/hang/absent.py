"""Whether the dumps of all others prove that the one rank without a dump keeps them waiting.

What a rank has issued is in its own dump alone. So a dump that is lost looks like a rank that never came: with its dump
there, the collective may be held by a device that has not begun, by a member with another size, or by a rank that has
left a call out. The dumps of the others exclude these only where each of them waits, in the end, for that rank, where
at least two of them call the same on devices that have begun, and where its peers have come equally far in each group.
"""

from __future__ import annotations

from laggard_exporter.hang.dump import Dump, Group
from laggard_exporter.hang.evidence import Evidence, Wait, newest_of

#: Torch does not record by default when a device begins with a call of NCCL's.
UNTIMED = "no device is known to have begun, which TORCH_NCCL_ENABLE_TIMING=1 records"
#: Peers whose calls and numbers must agree: one alone may be the one that differs.
_PEERS = 2


def why_not_proven(rank: int, evidence: Evidence) -> str:
    """Return why the only rank without a dump may be innocent; nothing where it is the culprit."""
    dumps = evidence.dumps
    if any(dump.sends or any(group.gloo for group in dump.newest) for dump in dumps.values()):
        return "it may be in a send or receive"
    waits = [wait for wait in evidence.waits if not wait.unknown and len(_at_work(wait, evidence)) > 0]
    if not waits:
        return UNTIMED
    if len(_settled(rank, waits, evidence)) <= len(dumps):
        return "not each of the others waits for it"
    if not all(_agree(group, rank, evidence) for group in _groups(rank, evidence)):
        return "its peers have not come equally far"
    return ""


def _at_work(wait: Wait, evidence: Evidence) -> list[int]:
    """Return the ranks whose devices work on a collective, and so wait in it."""
    return [rank for rank, call in evidence.pending[wait.group, wait.sequence].items() if call.started]


def _settled(rank: int, waits: list[Wait], evidence: Evidence) -> set[int]:
    """Return this rank and all those that wait for nobody but it, in the end."""
    settled = {rank}
    working = [(wait, _at_work(wait, evidence)) for wait in waits]
    waits_in: dict[int, list[Wait]] = {}
    for wait, ranks in working:
        for each in ranks:
            waits_in.setdefault(each, []).append(wait)
    open_waits = {id(wait): wait for wait in waits if rank not in wait.missing or _is_clear(wait, evidence)}
    ended: set[int] = set()
    before = -1
    while before != len(settled):
        before = len(settled)
        for key, wait in open_waits.items():
            holding = {*wait.missing, *wait.waiting}.difference(_at_work(wait, evidence))
            if key not in ended and holding and holding <= settled:
                ended.add(key)
        settled |= {each for each, mine in waits_in.items() if all(id(wait) in ended for wait in mine)}
    return settled


def _is_clear(wait: Wait, evidence: Evidence) -> bool:
    """Return whether at least two ranks work on a collective and bring the same to it, as far as that can be seen."""
    pending = evidence.pending[wait.group, wait.sequence]
    calls = [pending[rank] for rank in _at_work(wait, evidence)]
    same = len({str(call) for call in calls}) == 1
    return same and len(calls) >= _PEERS and bool(calls[0].shape or "barrier" in calls[0].name)


def _groups(rank: int, evidence: Evidence) -> set[Group]:
    """Return the groups that a rank is a member of, or may be."""
    listed = {group for dump in evidence.dumps.values() for group in (*dump.groups, *dump.newest)}
    return {group for group in listed if group.is_default or group.members is None or rank in group.members}


def _agree(group: Group, rank: int, evidence: Evidence) -> bool:
    """Return whether a rank's peers are done with the same number of a group's collectives, and none has left one out.

    Where it has one peer, that is compared with the members of groups of the same description.
    """
    peers = _members(group, evidence) - {rank}
    done = {_done(evidence.dumps[each], group) for each in peers}
    if done != {0} and len(peers) < _PEERS:
        alike = {each for each in evidence.members if each.description == group.description != ""}
        others = [_done(evidence.dumps[member], each) for each in alike for member in _members(each, evidence) - {rank}]
        return len(alike) > 1 and len(set(others)) == 1
    return len(done) <= 1


def _members(group: Group, evidence: Evidence) -> set[int]:
    known = evidence.members.get(group, ()) if group.members is None else group.members
    return {each for each in known if each in evidence.dumps}


def _done(dump: Dump, group: Group) -> int | None:
    """Return up to which number a rank is done with the collectives of a group, None where its dump has none left."""
    newest = newest_of(dump, group)
    return min((each.sequence - 1 for each in dump.pending if each.group == group), default=newest)
