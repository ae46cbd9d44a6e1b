"""Files of dumps of torch's flight recorder, as JSON or as the pickle that a watchdog writes, of NCCL and of gloo.

A dump lists a rank's newest collectives with their state. It does not say which rank wrote it: the name of the file
does, by the digits at its end. One that laggard had written may hold the dumps of several recorders, NCCL's and gloo's,
under `dumps`. What pickles may contain is limited to containers, text and numbers; anything else that
a pickle can do is refused before it happens.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, cast

from laggard_exporter.hang.dump import Dump
from laggard_exporter.hang.entries import Reading

#: A file beyond this is not read; 2000 entries with stacks are about 3 MB.
MAX_BYTES = 256 * 2**20
#: No job has more ranks. Whoever says so, a file's name, a group in a dump or a flag, must not make us count to it.
MAX_RANKS = 2**20

_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$")
_PICKLE_MARK = b"\x80"
#: What a dump has at least one of.
_KEYS = {"entries", "pg_config", "pg_status"}


class DumpError(Exception):
    """A file is no dump that can be read. The message says why, without the path."""


def rank_of(path: Path) -> int | None:
    """Return the rank that a file's name ends with, `None` if it ends otherwise."""
    found = _RANK.search(path.name)
    return int(found[1]) if found else None


def read(path: Path, rank: int) -> Dump:
    """Read a rank's dump.

    Raises:
        DumpError: the file cannot be read, is too large, or is no dump.
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
    everything: list[Any] = found.get("dumps", [found])
    parts = [cast("dict[str, Any]", part) for part in everything if isinstance(part, dict)]
    parts = [part for part in parts if part.keys() & _KEYS]
    if not parts:
        raise KeyError("entries")
    members: dict[str, tuple[int, ...] | None] = {}
    reading = Reading(rank, members)
    for part in parts:
        configuration: Mapping[str, Any] = part.get("pg_config") or {}
        members |= {name: _members(group) for name, group in configuration.items() if name}
    for part in parts:
        reading.add(part)
    if reading.damaged and not reading.read:
        raise reading.damaged
    return reading.dump()


def _members(group: Mapping[str, Any]) -> tuple[int, ...] | None:
    ranks = group.get("ranks")
    return _listed(ranks) if isinstance(ranks, str) else _checked(ranks)


@lru_cache(256)  # thousands of dumps list the same thousands of ranks
def _listed(ranks: str) -> tuple[int, ...] | None:
    return _checked(json.loads(ranks))


def _checked(ranks: Any) -> tuple[int, ...] | None:
    members = tuple(sorted(int(rank) for rank in ranks)) if ranks else None
    if members and not 0 <= members[0] <= members[-1] < MAX_RANKS:
        raise ValueError(f"ranks of a group must be 0 to {MAX_RANKS - 1}")
    return members
