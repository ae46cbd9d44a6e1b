"""What of a dump is exported: for each process group how far the rank has come, in a few numbers."""

from __future__ import annotations

import json
import re
import zlib
from typing import NamedTuple

from laggard_exporter.hang.dump import Dump, Group
from laggard_exporter.hang.dump_file import DumpError

#: Groups of a rank that are exported, those first in which something is not done.
MAX_GROUPS = 16
#: Peers of a rank that are exported. A stage of a pipeline has two.
MAX_PEERS = 16
#: What the facts of a dump take at most, as JSON.
MAX_BYTES = 8192

#: What a sample can say exactly.
_MAX_NUMBER = 2**53
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}\Z")


class GroupFacts(NamedTuple):
    """How far a rank has come in a group."""

    group: str
    #: Number of the newest collective that it has issued, and of the first that is not done, None where all are.
    issued: int
    pending: int | None = None
    #: What it calls there, and a mark of that with the types and sizes to which all members must agree.
    operation: str = ""
    call: str = ""
    #: Whether a device has begun to work on it, None where nobody says.
    begun: bool | None = None


class Facts(NamedTuple):
    """What a rank's dump says."""

    groups: tuple[GroupFacts, ...]
    #: A send or a receive is not done.
    transfer: bool
    #: Ranks to which a send, or from which a receive, is not done.
    peers: tuple[int, ...] = ()


def facts(dump: Dump) -> Facts:
    """Return the facts of a dump.

    Raises:
        DumpError: a collective has a number that no counter reaches.
    """
    numbers = [*dump.newest.values(), *(operation.sequence for operation in dump.pending)]
    if not all(0 <= number <= _MAX_NUMBER for number in numbers):
        raise DumpError("a collective has a number that no counter reaches")
    pending = {operation.group: operation for operation in dump.pending}
    found: list[GroupFacts] = []
    for group, issued in sorted(dump.newest.items(), key=lambda item: (item[0] not in pending, -item[1], item[0].name)):
        operation = pending.get(group)
        if operation is None:
            found.append(GroupFacts(_identity(group), issued))
            continue
        name = operation.name if _NAME.match(operation.name) else "other"
        call = f"{zlib.crc32(f'{operation}'.encode()):08x}"
        # Where the ring has room for open calls alone, the device may be in one that is not there.
        begun = None if group.gloo or (dump.short and not operation.started) else operation.started
        found.append(GroupFacts(_identity(group), issued, operation.sequence, name, call, begun))
    peers = sorted({each.peer for each in dump.transfers if each.peer is not None})
    return Facts(tuple(found[:MAX_GROUPS]), bool(dump.transfers), tuple(peers[:MAX_PEERS]))


def as_json(found: Facts) -> str:
    """Return the facts as text."""
    return json.dumps([found.groups, found.transfer, found.peers])


def from_json(text: str | bytes) -> Facts:
    """Return the facts that :func:`as_json` has written. Raises :class:`ValueError` for anything else."""
    try:
        groups, transfer, peers = json.loads(text)
        return Facts(tuple(GroupFacts(*group) for group in groups), bool(transfer), tuple(map(int, peers)))
    except TypeError as error:
        raise ValueError(str(error)) from error


def _identity(group: Group) -> str:
    """Return a group's label: the state file's for NCCL; gloo's numbers are others where a group has both."""
    name = f"{group.name} gloo" if group.gloo else group.name
    return f"{zlib.crc32(name.encode()) + 1:016x}"
