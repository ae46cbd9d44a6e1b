"""One answer of NCCL's RAS service, in the JSON that it speaks since NCCL 2.28.7.

An answer comes from a port that anybody on the node may listen on, so each value is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, cast

#: An answer that is longer is not read. A rank takes about 700 bytes in each communicator.
MAX_BYTES = 32 << 20
#: What a communicator may have, and what a counter reaches.
MAX_RANKS, MAX_COUNT = 2**20, 2**53
_MAX_TEXT = 64


class RasError(ValueError):
    """An answer cannot be used; the text says why."""


class Place(NamedTuple):
    """Where a member of a communicator is: its host's address, its process as that numbers itself, and its GPU."""

    host: str
    pid: int
    gpu: int


class State(Enum):
    """What a member of a communicator is at."""

    RUNNING = "running"
    STARTING = "starting"
    ENDING = "ending"
    #: Its process answers and knows the communicator no more, or not yet.
    LEFT = "left"
    #: RAS could not reach its process.
    UNRESPONSIVE = "unresponsive"
    #: RAS could not for a minute, and has given it up for good.
    DEAD = "dead"


#: Of a process that did not answer.
AWAY = frozenset({State.UNRESPONSIVE, State.DEAD})


@dataclass(frozen=True)
class Member:
    """A member of a communicator."""

    rank: int
    """Its number in this communicator."""
    place: Place
    state: State
    counts: Mapping[str, int]
    """Collectives that it has issued, by operation; sends and receives are not counted. Empty where it said nothing."""

    @property
    def issued(self) -> int:
        """Collectives that it has issued."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Communicator:
    """A communicator with all of its members, in their order."""

    identity: str
    size: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Answer:
    """What RAS said of a job."""

    version: str
    """Of NCCL."""
    time: str
    """Local time of the host that answered."""
    communicators: tuple[Communicator, ...]


def parse(data: bytes) -> Answer:
    """Return what an answer says; lines of the protocol before it are left out.

    Raises:
        RasError: it is no JSON, has not what NCCL writes, or something in it cannot be.
    """
    if len(data) > MAX_BYTES:
        raise RasError(f"{len(data)} bytes are more than the {MAX_BYTES} that are read")
    start = data.find(b"{")
    if start < 0:
        raise RasError("no JSON: NCCL writes it since 2.28.7 (ncclras -f json)")
    try:
        found = json.loads(data[start:])
    except (ValueError, RecursionError) as error:
        raise RasError(_why_malformed(data, error)) from error
    document = _mapping(found, "the answer")
    communicators = tuple(_communicator(_mapping(each, "a communicator")) for each in _list(document, "communicators"))
    return Answer(_text(document, "nccl_version"), _text(document, "timestamp"), communicators)


def _why_malformed(data: bytes, error: Exception) -> str:
    # 2.28.7 and 2.28.9 leave out a comma in each missing rank.
    if b'"nccl_version": "2.28.' in data[:4096]:
        return "malformed JSON, as NCCL 2.28 writes it where a rank is missing; NCCL 2.29 does not"
    return f"malformed JSON: {error}"


def _communicator(found: Mapping[str, Any]) -> Communicator:
    identity = f"{_text(found, 'hash')} {_text(found, 'secondary_hash')}"
    size = _number(found, "size", MAX_RANKS)
    there = [_member(_mapping(each, "a rank")) for each in _list(found, "ranks")]
    away = [_missing(_mapping(each, "a missing rank")) for each in _list(found, "missing_ranks")]
    members = sorted((*there, *away), key=lambda member: member.rank)
    ranks = [member.rank for member in members]
    if len(set(ranks)) != len(ranks) or (ranks and ranks[-1] >= size):
        raise RasError(f"communicator {identity} of size {size} has a rank twice or beyond its size")
    return Communicator(identity, size, tuple(members))


def _member(found: Mapping[str, Any]) -> Member:
    status, counts = (_mapping(found.get(name), name) for name in ("status", "collective_counts"))
    ending = [_flag(status, name) for name in ("finalize_called", "destroy_flag", "abort_flag")]
    started = _number(status, "init_state", MAX_COUNT) == 0
    state = State.ENDING if any(ending) else State.RUNNING if started else State.STARTING
    by_operation = {name: _number(counts, name, MAX_COUNT) for name in counts}
    return Member(_number(found, "rank", MAX_RANKS), _place(found), state, by_operation)


def _missing(found: Mapping[str, Any]) -> Member:
    status = _mapping(found.get("status"), "status")
    unresponsive, dead = (_flag(status, name) for name in ("unresponsive", "considered_dead"))
    state = State.DEAD if dead else State.UNRESPONSIVE if unresponsive else State.LEFT
    return Member(_number(found, "rank", MAX_RANKS), _place(found), state, {})


def _place(found: Mapping[str, Any]) -> Place:
    # Of a process that it does not know, RAS says -1.
    return Place(_text(found, "host"), _number(found, "pid", MAX_COUNT, -1), _number(found, "nvml_dev", MAX_COUNT, -1))


def _mapping(found: object, what: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise RasError(f"{what} must be an object, got {_shown(found)}")
    return cast("dict[str, Any]", found)


def _list(found: Mapping[str, Any], name: str) -> Sequence[object]:
    value = found.get(name)
    if not isinstance(value, list):
        raise RasError(f"{name} must be a list, got {_shown(value)}")
    return cast("list[object]", value)


def _number(found: Mapping[str, Any], name: str, most: int, least: int = 0) -> int:
    value = found.get(name)
    if type(value) is not int or not least <= value <= most:
        raise RasError(f"{name} must be a whole number of {least} to {most}, got {_shown(value)}")
    return value


def _flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name)
    if not isinstance(value, bool):
        raise RasError(f"{name} must be true or false, got {_shown(value)}")
    return value


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise RasError(f"{name} must be a text of at most {_MAX_TEXT} characters, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return "nothing" if value is None else ascii(value)[:_MAX_TEXT]
