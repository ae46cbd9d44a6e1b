"""Files of dumps of torch's flight recorder, as JSON or as the pickle that a watchdog writes, of NCCL and of gloo.

A dump lists a rank's newest collectives with their state. It does not say which rank wrote it: the name of the file
does, by the digits behind the word rank, else by those at its end. One that laggard had written may hold the dumps of
several recorders, NCCL's and gloo's, under `dumps`. What pickles may contain is limited to containers, text and
numbers; anything else that a pickle can do is refused before it happens.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import zlib
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

#: The word rank, unless it counts something else than the ranks of the job.
_RANK_WORD = re.compile(r"(local|node|group|host)?[-_.]?rank[-_=]?(\d+)", re.IGNORECASE)
_RANK_AT_END = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?(?:\.gz)?$", re.IGNORECASE)
#: What editors and copies leave beside a file, which may be older or half of it.
_LEFT_OVER = re.compile(r"\..*|.*(?:~|\.(?:bak|old|orig|part|swp|tmp))")
_PICKLE_MARK = b"\x80"
#: How much is unpacked at a time.
_PART = 2**20
_GZIP_MARK = b"\x1f\x8b"
#: How files begin that are compressed otherwise.
_COMPRESSED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK": "zip",
}
#: What a dump has at least one of.
_KEYS = {"entries", "pg_config", "pg_status"}


class DumpError(Exception):
    """A file is no dump that can be read. The message says why, without the path."""


def rank_in(name: str) -> tuple[int, str] | None:
    """Return the rank that a file's name says, and the rest of the name; `None` where it says none, or several."""
    if _LEFT_OVER.fullmatch(name):
        return None
    words = [found for found in _RANK_WORD.finditer(name) if not found[1]]
    if len({int(found[2]) for found in words}) == 1:
        start, end = words[-1].span(2)
        return int(words[-1][2]), name[:start] + name[end:]
    found = None if words else _RANK_AT_END.search(name)
    return (int(found[1]), name[: found.start()]) if found else None


def read(path: Path, rank: int) -> Dump:
    """Read a rank's dump.

    Raises:
        DumpError: the file cannot be read, is too large, or is no dump.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DumpError(f"{size} bytes are more than the {MAX_BYTES} that are read")
        return parse(_unpacked(path.read_bytes()), rank)
    except OSError as error:
        raise DumpError(error.strerror or str(error)) from error


def _unpacked(content: bytes) -> bytes:
    how = next((how for mark, how in _COMPRESSED.items() if content.startswith(mark)), "")
    if how:
        raise DumpError(f"compressed by {how}: unpack it")
    if not content.startswith(_GZIP_MARK):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as file:
            # Not at once: so much memory would be taken first, whatever is in it.
            parts = [part for _ in range(0, MAX_BYTES + _PART, _PART) if (part := file.read(_PART))]
    except (OSError, EOFError, zlib.error) as error:
        raise DumpError(f"the compressed file is damaged: {error}") from error
    unpacked = b"".join(parts)
    if len(unpacked) > MAX_BYTES:
        raise DumpError(f"unpacked it has more than the {MAX_BYTES} bytes that are read")
    return unpacked


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
        reading.add(_counted(part))
    if reading.damaged and not reading.read:
        raise reading.damaged
    return reading.dump()


def _counted(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part with numbers from 1 on, by group.

    The recorder of torchcomms has torch's format and describes a communicator by its backend. One counter, from 0 on,
    numbers the calls of all communicators, sends and receives too. Of one communicator without these it is as torch.
    """
    entries: list[Any] = part.get("entries") or []
    known = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
    if not known or not all(_is_of_torchcomms(entry) for entry in known):
        return part
    names = {str(entry["profiling_name"]).rpartition(":")[2] for entry in known}
    if len(part.get("pg_config") or ()) > 1 or names & {"send", "recv", "batch_op_issue"}:
        raise DumpError("torchcomms counts the calls of all communicators together, so ranks cannot be compared")
    counters = "collective_seq_id", "op_id"
    return {**part, "entries": [{**entry, **{each: entry[each] + 1 for each in counters}} for entry in known]}


def _is_of_torchcomms(entry: Mapping[str, Any]) -> bool:
    group, backend = entry.get("process_group"), str(entry.get("profiling_name")).partition(":")[0]
    numbers = [entry.get(each) for each in ("collective_seq_id", "op_id", "record_id")]
    described = isinstance(group, list | tuple) and list(cast("list[Any]", group))[1:] == [backend]
    return described and isinstance(numbers[0], int) and numbers == numbers[:1] * 3


def _members(group: Mapping[str, Any]) -> tuple[int, ...] | None:
    ranks = group.get("ranks")
    return _listed(ranks) if isinstance(ranks, str) else _checked(ranks)


@lru_cache(256)  # thousands of dumps list the same thousands of ranks
def _listed(ranks: str) -> tuple[int, ...] | None:
    return _checked(json.loads(ranks if ranks.startswith("[") else f"[{ranks}]"))


def _checked(ranks: Any) -> tuple[int, ...] | None:
    members = tuple(sorted(int(rank) for rank in ranks)) if ranks else None
    if members and not 0 <= members[0] <= members[-1] < MAX_RANKS:
        raise ValueError(f"ranks of a group must be 0 to {MAX_RANKS - 1}")
    return members
