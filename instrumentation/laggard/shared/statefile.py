"""The state file: what one rank was last doing, readable from outside when the rank itself cannot answer.

One file per rank process, :data:`SIZE` bytes, memory-mapped by the rank and read by the node exporter. Only the
standard library is imported, since both sides use this module.

Layout (little endian, words of 8 bytes)::

    0     magic, version
    16    facts: identity of the process, guarded by a sequence word (odd while it is written)
    1024  live words: each is one aligned 8-byte store, so none can be seen half written
    2048  name of the exception that ended the process; it is there before the word that says so

The live words have no sequence lock, on purpose. A process that is stopped inside a guarded write would leave its
own file unreadable, exactly when somebody asks where it stands. What must be consistent is packed into one word:
a phase with the time at which it was entered, a collective's operation with its sequence number.

Times are nanoseconds of ``CLOCK_BOOTTIME``, which all processes of a machine share and which no clock step moves.

Alive means that the process still holds a POSIX record lock on its file. The kernel drops the lock at any death,
keeps it for a stopped process, shows it across process namespaces and does not pass it on to forked workers. The
file must never be opened a second time in its own process: closing the second descriptor would drop the lock.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import stat
import struct
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from laggard.shared import untrusted
from laggard.shared.names import NAME_BYTES, clip_name
from laggard.shared.phases import Phase, RankState

_STDERR = 2

#: Longer than an exporter shows what a dead rank has left.
OLD_NS = 3600 * 1_000_000_000

#: Windows lacks it, and has no ranks.
fcntl: Any = None
with contextlib.suppress(ImportError):
    fcntl = import_module("fcntl")

MAGIC = b"LAGGARD\0"
VERSION = 1
SIZE = 4096
SUFFIX = ".state"
MAX_GROUPS = 8

_FACTS_SEQUENCE = 16
_FACTS_OFFSET = 24
_FACTS = struct.Struct(f"<4q16s{NAME_BYTES}s{NAME_BYTES}s{NAME_BYTES}s{NAME_BYTES}s64sqqqqq")
_LIVE_OFFSET = 1024
_LIVE_WORD = _LIVE_OFFSET // 8
_EXCEPTION_OFFSET = 2048

# Live words, as indices of 8-byte words in the file.
STATE = _LIVE_WORD
PHASE = _LIVE_WORD + 1
PROGRESS = _LIVE_WORD + 2
STEPS = _LIVE_WORD + 3
LAST_STEP = _LIVE_WORD + 4
ENDING = _LIVE_WORD + 5
ENDED = _LIVE_WORD + 6
ASKED = _LIVE_WORD + 7
GROUPS = _LIVE_WORD + 8
GROUP_WORDS = 3  # identity, started, finished

#: In a packed word the code stands in the bits from here on, the value below.
CODE_SHIFT = 56
_VALUE_MASK = (1 << CODE_SHIFT) - 1

# struct flock as the kernel of a 64-bit Linux lays it out: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")


class StateFileError(Exception):
    """A state file cannot be used; the message names the file and the reason."""


def boottime_ns() -> int:
    """Return the time since boot in nanoseconds, suspended time included where the system knows it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)


@functools.cache
def boot_id() -> bytes:
    """Return 16 bytes that change at every boot, or zeros where the system has none."""
    with contextlib.suppress(OSError, ValueError):
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    return bytes(16)


def default_directory() -> Path:
    """Return the folder of state files used unless ``LAGGARD_STATE_DIR`` names another."""
    shared_memory = Path("/dev/shm")  # noqa: S108 - the folder is created with the sticky bit and its owner checked
    return (shared_memory if shared_memory.is_dir() else Path("/tmp")) / "laggard"  # noqa: S108 - as above


def pack(code: int, value: int) -> int:
    """Pack a small code (0 to 127) and a value below 2**56 into one word."""
    return code << CODE_SHIFT | value & _VALUE_MASK


def unpack(word: int) -> tuple[int, int]:
    """Return the code and the value of a packed word."""
    return word >> CODE_SHIFT, word & _VALUE_MASK


@dataclass(frozen=True)
class Facts:
    """What does not change while a rank's process lives, but for the run, which may become known later."""

    pid: int
    pid_start_ticks: int
    """Start time of the process in clock ticks since boot, field 22 of ``/proc/PID/stat``."""
    start_boottime_ns: int
    start_unix_ns: int
    boot_id: bytes
    run: str
    host: str
    peer_group: str
    workload: str
    hardware_id: str
    rank: int
    local_rank: int
    world_size: int
    restarts: int
    metrics_port: int
    """0 while nothing is served."""


class EndedBy(IntEnum):
    """What ended a process. The values are stored in state files; in those of older versions it is always unknown."""

    UNKNOWN = 0
    EXIT = 1
    EXCEPTION = 2
    SIGNAL = 3


@dataclass(frozen=True)
class Ending:
    """How a process ended, as far as it could say: not by SIGKILL, by a fault or by ``os._exit``."""

    by: EndedBy = EndedBy.UNKNOWN
    code: int = 0
    """The exit code, or the signal's number."""
    exception: str = ""
    """Name of the exception's class with its module."""

    @property
    def failed(self) -> bool:
        """Whether that was no clean end."""
        return self.code != 0


_TEXTS = ("run", "host", "peer_group", "workload", "hardware_id")


@dataclass(frozen=True)
class Group:
    """Progress of one process group: collectives started and finished by this rank, point to point excluded."""

    identity: int
    operation: int
    started: int
    finished: int


@dataclass(frozen=True)
class Snapshot:
    """One reading of a state file."""

    facts: Facts
    state: RankState
    phase: Phase
    phase_entered_ns: int
    progress: int
    steps: int
    last_step_ns: int
    """0 before the first step ended."""
    groups: tuple[Group, ...]
    ending: Ending
    ended_ns: int
    """When the process said how it ends; 0 where it did not."""
    asked_by: int
    """The newest signal that asked it to end and that did not end it at once; 0 where none came."""
    asked_ns: int
    """When that signal came."""
    alive: bool
    holder_pid: int
    """Process that holds the lock, as the reader's process namespace numbers it; 0 where it is not visible."""

    @property
    def last_sign_ns(self) -> int:
        """The newest time in the file: when the process last showed that it lived."""
        return max(self.phase_entered_ns, self.last_step_ns, self.facts.start_boottime_ns, self.ended_ns)


class StateWriter:
    """The rank's side. ``words`` is the hot path: one indexed store per fact.

    Raises :class:`StateFileError` when the file cannot be made; nothing is left behind then.
    """

    def __init__(self, directory: Path, facts: Facts) -> None:
        with beyond_standard():
            self.path, self.descriptor = _create(directory)
            try:
                # Written, not truncated to size: a full file system must fail here and not as SIGBUS at a later store.
                left = SIZE
                while left:  # what a limit cuts short fails at the second attempt, with its reason
                    left -= os.write(self.descriptor, bytes(left))
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._map = mmap.mmap(self.descriptor, SIZE)  # which has a descriptor of its own
            except OSError as error:
                os.close(self.descriptor)
                self.path.unlink(missing_ok=True)
                raise StateFileError(f"state file {self.path}: {error.strerror}") from error
        self.words = memoryview(self._map).cast("Q")
        self.words[PHASE] = pack(Phase.OTHER, facts.start_boottime_ns)
        self.write_facts(facts)
        # The magic comes last: a reader never takes a file for valid before its facts are there.
        self._map[8:16] = struct.pack("<II", VERSION, SIZE)
        self._map[0:8] = MAGIC

    def write_facts(self, facts: Facts) -> None:
        """Replace the facts. Not for the hot path; one caller at a time."""
        texts = {name: clip_name(getattr(facts, name)).encode() for name in _TEXTS}
        packed = _FACTS.pack(*(texts.get(field.name, getattr(facts, field.name)) for field in fields(facts)))
        sequence = _FACTS_SEQUENCE // 8
        self.words[sequence] += 1
        self._map[_FACTS_OFFSET : _FACTS_OFFSET + _FACTS.size] = packed
        self.words[sequence] += 1

    def write_ending(self, ending: Ending) -> None:
        """Say how the process ends, after :meth:`note_end`."""
        name = clip_name(ending.exception).encode().ljust(NAME_BYTES, b"\0")
        self._map[_EXCEPTION_OFFSET : _EXCEPTION_OFFSET + NAME_BYTES] = name
        self.words[ENDING] = pack(ending.by, ending.code)

    def note_end(self) -> None:
        """Keep the time at which the process began to end."""
        self.words[ENDED] = self.words[ENDED] or boottime_ns()

    def forget_end(self) -> None:
        """Take back what :meth:`note_end` and :meth:`write_ending` have said."""
        self.words[ENDING] = self.words[ENDED] = 0

    def close(self, *, unlink: bool = False) -> None:
        """Unmap and close, which drops the lock. A forked child may call it without effect on the parent."""
        self.words.release()
        self._map.close()
        os.close(self.descriptor)
        if unlink:
            self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def beyond_standard() -> Generator[None]:
    """Have no descriptor that is opened inside be 0, 1 or 2, with which a process may begin closed.

    What native code prints there, or the script puts there, must not reach what is ours.
    """
    held: list[int] = []
    with contextlib.suppress(OSError):
        while not held or held[-1] <= _STDERR:
            held.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def read(path: Path) -> Snapshot:
    """Read a state file that anybody may have written.

    Raises :class:`StateFileError` for anything that is not a whole state file of this version and this boot.
    """
    try:
        fd = untrusted.open_file(path)
    except OSError as error:
        raise StateFileError(f"state file {path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != SIZE:
            raise StateFileError(f"state file {path}: not a regular file of {SIZE} bytes")
        # Read, not mapped: a file that its owner cuts short would kill a mapped reader with SIGBUS.
        data, facts = _read_consistent(fd, path)
        alive, holder = _lock_holder(fd)
    except OSError as error:
        raise StateFileError(f"state file {path}: {error.strerror}") from error
    finally:
        os.close(fd)
    if facts.boot_id != boot_id():
        raise StateFileError(
            f"state file {path}: of host {facts.host!r} before this boot, or of another host. Give each host its own "
            "folder, which a boot empties"
        )
    words = memoryview(data).cast("Q")
    phase, entered = unpack(words[PHASE])
    asked_by, asked = unpack(words[ASKED])
    try:
        return Snapshot(
            facts=facts,
            state=RankState(words[STATE]),
            phase=Phase(phase),
            phase_entered_ns=entered,
            progress=words[PROGRESS],
            steps=words[STEPS],
            last_step_ns=words[LAST_STEP],
            groups=tuple(_groups(words)),
            ending=_ending(data, words[ENDING]),
            ended_ns=words[ENDED],
            asked_by=asked_by,
            asked_ns=asked,
            alive=alive,
            holder_pid=holder,
        )
    except ValueError as error:
        raise StateFileError(f"state file {path}: {error}") from error


def others(directory: Path, own: Path | None = None) -> Iterator[tuple[Path, Snapshot]]:
    """Yield the files of a folder that processes of this user keep, or have left, but for ``own``, this process's."""
    for path in directory.glob(f"*{SUFFIX}"):
        # Never its own: to close it once more would drop the lock that says that this process lives.
        if path != own:
            with contextlib.suppress(OSError, StateFileError):
                if path.lstat().st_uid == os.getuid():
                    yield path, read(path)


def remove_old(own: Path) -> None:
    """Remove what others of this user have left that ended long ago: the exporter's user may not remove them."""
    for path, file in others(own.parent, own):
        if not file.alive and boottime_ns() - file.last_sign_ns > OLD_NS:
            with contextlib.suppress(OSError):
                path.unlink()


def holder(path: Path) -> int:
    """Return the process that holds a file's lock now, as :class:`Snapshot` has it; 0 where the file is gone too."""
    with contextlib.suppress(OSError):
        fd = untrusted.open_file(path)
        try:
            return _lock_holder(fd)[1]
        finally:
            os.close(fd)
    return 0


def _create(directory: Path) -> tuple[Path, int]:
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(parents=True)
            directory.chmod(0o1777)
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode):
            raise StateFileError(f"state folder {directory}: not a folder; symbolic links are not followed")
        # In a folder that others may write without the sticky bit, anybody could swap the file for one of theirs.
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise StateFileError(f"state folder {directory}: writable for all without the sticky bit; chmod 1777 it")
        path = directory / f"{os.urandom(8).hex()}{SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o644)
        os.fchmod(fd, 0o644)  # a strict umask would hide the file from an exporter of another user
    except OSError as error:
        raise StateFileError(f"state folder {directory}: {error.strerror}") from error
    return path, fd


def _read_consistent(fd: int, path: Path) -> tuple[bytes, Facts]:
    for _ in range(100):
        data = os.pread(fd, SIZE, 0)
        if len(data) != SIZE or data[:8] != MAGIC:
            raise StateFileError(f"state file {path}: not a state file, or not yet complete")
        version, size = struct.unpack_from("<II", data, 8)
        if (version, size) != (VERSION, SIZE):
            raise StateFileError(f"state file {path}: version {version}, this reader knows {VERSION}")
        before = data[_FACTS_SEQUENCE:_FACTS_OFFSET]
        # The page is copied front to back, so the sequence is read again after the facts were.
        after = os.pread(fd, 8, _FACTS_SEQUENCE)
        if before == after and not before[0] & 1:
            return data, _unpack_facts(data)
        time.sleep(0.0001)
    raise StateFileError(f"state file {path}: its facts are being written all the time")


def _unpack_facts(data: bytes) -> Facts:
    values = dict(zip((field.name for field in fields(Facts)), _FACTS.unpack_from(data, _FACTS_OFFSET), strict=True))
    for name in _TEXTS:
        values[name] = clip_name(values[name].rstrip(b"\0").decode("utf-8", "replace"))
    return Facts(**values)


def _ending(data: bytes, word: int) -> Ending:
    by, code = unpack(word)
    name = data[_EXCEPTION_OFFSET : _EXCEPTION_OFFSET + NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace")
    return Ending(EndedBy(by), code, clip_name(name))


def _groups(words: memoryview[int]) -> list[Group]:
    groups: list[Group] = []
    for slot in range(MAX_GROUPS):
        identity, started, finished = words[GROUPS + slot * GROUP_WORDS : GROUPS + (slot + 1) * GROUP_WORDS]
        if identity:
            operation, sequence = unpack(started)
            groups.append(Group(identity, operation, sequence, finished))
    return groups


def _lock_holder(fd: int) -> tuple[bool, int]:
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    # Whoever may read the file may take a read lock on it; only its owner can hold the write lock.
    return kind == fcntl.F_WRLCK, max(pid, 0)
