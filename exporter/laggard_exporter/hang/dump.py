"""What a rank's dump of a flight recorder says of its collectives, sends and receives.

:mod:`laggard_exporter.hang.dump_file` reads one from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: How torch describes the group of all ranks.
DEFAULT_GROUP = "default_pg"


@dataclass(frozen=True)
class Group:
    """A process group as its members know it."""

    name: str
    description: str
    #: Ranks of the job, `None` where the dump does not say. Thousands, so they are compared and not hashed.
    members: tuple[int, ...] | None = field(hash=False)
    #: Gloo counts by itself where a group has NCCL too.
    gloo: bool = False

    @property
    def is_default(self) -> bool:
        """Whether it is the group of all ranks."""
        return self.description == DEFAULT_GROUP

    def __str__(self) -> str:
        known = self.description not in ("", "undefined")
        return f"{self.name} ({self.description})" if known else self.name


@dataclass(frozen=True)
class Operation:
    """A collective that is not done on the rank that wrote the dump."""

    group: Group
    #: Number of the collective in its group, the same on all members.
    sequence: int
    name: str
    #: In what all members must agree, as far as the dump says it: types and sizes by the side of the collective, and
    #: the parts of a coalesced call.
    shape: tuple[tuple[str, str], ...]
    #: A device has begun to work on it. Never with gloo, which does not say.
    started: bool

    def __str__(self) -> str:
        return " ".join((self.name, ", ".join(map(" ".join, self.shape)))).rstrip()


@dataclass(frozen=True)
class Transfer:
    """The first send to a peer, or receive from it, that is not done."""

    group: Group
    #: Number of the send, receive or batch in its group on this rank: the peer may count otherwise.
    sequence: int
    #: With the ranks of the job, as in `send 3->7`.
    name: str
    #: Rank of the job, `None` where the dump does not say.
    peer: int | None
    #: Types and sizes, in which both sides must agree.
    shape: str = ""


@dataclass(frozen=True)
class Dump:
    """What one rank's dump says."""

    rank: int
    #: The first collective of each group that is not done.
    pending: tuple[Operation, ...]
    #: Number of the newest collective that was issued, by group.
    newest: Mapping[Group, int]
    #: The first send and receive of each peer that is not done.
    transfers: tuple[Transfer, ...]
    #: Entries are not there, since newer ones took their room or the file is damaged: absence of one proves nothing.
    truncated: bool
    #: An entry could not be read, so even the newest that is known may not be the newest.
    damaged: bool = False
    #: Newer entries have taken the room of all that are done, so even what is open may not be there.
    short: bool = False
    #: The lowest and the highest number of the collectives of each group that are there.
    numbers: Mapping[Group, tuple[int, int]] = field(default_factory=dict[Group, tuple[int, int]])
    #: When the oldest and the newest call of any group were issued, in nanoseconds since 1970; (0, 0) without any.
    span: tuple[int, int] = (0, 0)
    #: The longest time between two calls that follow one another, in nanoseconds.
    pause: int = 0
    #: Nanoseconds after which torch gives up a collective.
    timeout: int = 0
    #: Number of the newest collective of each group that is done and that no member can end alone.
    ended: Mapping[Group, int] = field(default_factory=dict[Group, int])
    #: Sends and receives were made that the recorder counts and does not show.
    hidden: bool = False
    #: The rank was in a call of torch.distributed, whatever the recorder shows; `None` where nobody says.
    calling: bool | None = None
    #: When it was written at the latest, in nanoseconds since 1970; 0 where it stands for now, or nobody knows.
    written: int = 0
    #: The groups that the rank is a member of, as far as the dump lists them, whether it has used them or not.
    groups: tuple[Group, ...] = ()
    #: There are sends or receives, done or not, which gloo's recorder does not show.
    sends: bool = False
    #: By group and number what is done on the rank and may be open on others, such as a broadcast on its root.
    passed: Mapping[tuple[Group, int], Operation] = field(default_factory=dict[tuple[Group, int], Operation])
