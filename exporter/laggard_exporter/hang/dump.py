"""Dumps of torch's flight recorder, as JSON or as the pickle that a watchdog writes, of NCCL and of gloo.

A dump lists a rank's newest collectives with their state. It does not say which rank wrote it: the name of the file
does, by the digits at its end. One that laggard had written may hold the dumps of several recorders, NCCL's and gloo's,
under `dumps`. What pickles may contain is limited to containers, text and numbers; anything else that
a pickle can do is refused before it happens.

Format: torch's FlightRecorder, version 2.x; `entries` in the order in which they were issued, `pg_config` with the
members of each group. Gloo (torch 2.15) fills `pg_config` with another group's ranks under an empty name, leaves out
sends and receives, and never leaves the state `scheduled`: there only `retired` tells.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

#: A file beyond this is not read; 2000 entries with stacks are about 3 MB.
MAX_BYTES = 256 * 2**20
#: No job has more ranks. Whoever says so, a file's name, a group in a dump or a flag, must not make us count to it.
MAX_RANKS = 2**20

_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$")
_PICKLE_MARK = b"\x80"
#: Operations to which every member brings the same amount.
_SAME_SIZE = ("all_reduce", "allreduce", "reduce", "broadcast", "barrier")
_DEFAULT_GROUP = "default_pg"
_COMPLETED = "completed"
_GLOO = "gloo"


class DumpError(Exception):
    """A file is no dump that can be read. The message says why, without the path."""


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
        return self.description == _DEFAULT_GROUP

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
    #: What all members must bring alike: the types and sizes of the inputs, for operations that demand it.
    shape: str
    #: A device has begun to work on it. Never with gloo, which does not say.
    started: bool


@dataclass(frozen=True)
class Dump:
    """What one rank's dump says."""

    rank: int
    #: The first collective of each group that is not done.
    pending: tuple[Operation, ...]
    #: Number of the newest collective that was issued, by group.
    newest: Mapping[Group, int]
    #: A send or a receive is not done.
    transfers: bool
    #: Older entries made room for newer ones, so a group without entries may have had some.
    truncated: bool


def rank_of(path: Path) -> int | None:
    """Return the rank that a file's name ends with, `None` if it ends otherwise."""
    found = _RANK.search(path.name)
    return int(found[1]) if found else None


def read(path: Path, rank: int) -> Dump:
    """Read a rank's dump.

    Raises:
        DumpError: the file can not be read, is too large, or is no dump.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DumpError(f"{size} bytes are more than the {MAX_BYTES} that are read")
        return parse(path.read_bytes(), rank)
    except OSError as error:
        raise DumpError(error.strerror or str(error)) from error


def parse(content: bytes, rank: int) -> Dump:
    """Read a rank's dump from what a file contains.

    Raises:
        DumpError: it is no dump.
    """
    if not content:
        raise DumpError("the file is empty")
    try:
        found = _Unpickler(io.BytesIO(content)).load() if content[:1] == _PICKLE_MARK else json.loads(content)
    except DumpError:
        raise
    except (MemoryError, RecursionError) as error:
        raise DumpError("it needs more memory than a dump does") from error
    except Exception as error:  # a pickle that is damaged raises nearly anything
        raise DumpError(f"neither JSON nor a pickle that can be read ({type(error).__name__})") from error
    try:
        return _dump(found, rank)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DumpError(f"no dump of a flight recorder ({type(error).__name__}: {error})") from error


class _Unpickler(pickle.Unpickler):
    """Builds containers, text and numbers. Every way to anything else asks one of these two methods first."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise DumpError(f"the pickle names {module}.{name}, a dump has only text, numbers and containers")

    def persistent_load(self, _: Any, /) -> NoReturn:
        raise DumpError("the pickle refers to something outside of itself")


def _dump(found: Any, rank: int) -> Dump:
    parts: list[Any] = found.get("dumps", [found])
    entries: list[Mapping[str, Any]] = [entry for part in parts for entry in part["entries"]]
    members: dict[str, tuple[int, ...] | None] = {}
    for part in parts:
        told: Mapping[str, Any] = part.get("pg_config") or {}
        members |= {name: _members(group) for name, group in told.items() if name}
    groups: dict[tuple[str, str, bool], Group] = {}
    newest: dict[Group, int] = {}
    pending: dict[Group, Operation] = {}
    transfers = False
    for entry in entries:
        name, description = entry["process_group"]
        backend, _, operation = str(entry["profiling_name"]).rpartition(":")
        key = name, description, backend == _GLOO
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(str(name), str(description), members.get(name), backend == _GLOO)
        done = bool(entry["retired"]) or entry["state"] == _COMPLETED
        if entry["is_p2p"]:
            transfers |= not done
            continue
        sequence = entry["collective_seq_id"]
        if not isinstance(sequence, int):
            raise TypeError("collective_seq_id is no number")
        newest[group] = max(newest.get(group, 0), sequence)
        if not done and (group not in pending or sequence < pending[group].sequence):
            shape = f"{entry['input_dtypes']}{entry['input_sizes']}" if operation in _SAME_SIZE else ""
            pending[group] = Operation(group, sequence, operation, shape, entry["state"] != "scheduled")
    truncated = any(part["entries"] and min(int(entry["record_id"]) for entry in part["entries"]) > 0 for part in parts)
    return Dump(rank, tuple(pending.values()), newest, transfers, truncated)


def _members(group: Mapping[str, Any]) -> tuple[int, ...] | None:
    ranks = group.get("ranks")
    if isinstance(ranks, str):
        ranks = json.loads(ranks)
    members = tuple(sorted(int(rank) for rank in ranks)) if ranks else None
    if members and not 0 <= members[0] <= members[-1] < MAX_RANKS:
        raise ValueError(f"a group has a rank that is none of 0 to {MAX_RANKS - 1}")
    return members
