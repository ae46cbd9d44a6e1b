"""Local runs that are at work on this machine: each says where it is, so that a command in another terminal finds it.

The monitor of ``laggard run --local`` keeps a lock on a folder in shared memory for as long as it lives, and in it a
file that names its server. The kernel drops the lock at any death, so what a killed run left behind is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from laggard.shared import statefile, untrusted
from laggard.shared.control import write_atomically
from laggard_cli.errors import CommandError
from laggard_cli.nearby import listed

#: What the folders of local runs are called, before the number of a process.
PREFIX = "laggard-local-"
#: What the folder of a run's servers is called, in that of the run.
SERVERS = "servers"
FILE = "run.json"
#: Within which a run that has a folder has its lock.
_BEGIN_SECONDS = 60.0
_MOST_BYTES = 65_536

#: Windows lacks it, and has no local runs.
fcntl: Any = None
with contextlib.suppress(ImportError):
    fcntl = import_module("fcntl")


@dataclass(frozen=True)
class LiveRun:
    """A local run at work."""

    run: str
    folder: str
    """In which its report will be."""
    state_directory: str
    """Of its ranks."""
    prometheus: str
    """The address of its server."""
    servers: str
    """The folder that is removed with the servers; empty where it is to stay."""
    began: float
    """In seconds since 1970."""

    def __str__(self) -> str:
        """Return how a person is told of it."""
        near = os.path.relpath(self.folder)
        return f"{self.run} ({self.folder if near.startswith('..') else near})"


class Announcement:
    """Says of a local run where it is, until :meth:`end` or the end of the process.

    Args:
        folder: of this run alone, called :data:`PREFIX` and something, among shared memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = untrusted.open_folder(folder)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def say(self, run: LiveRun) -> None:
        """Name the run and its server, also after that has another address. Raises :class:`OSError`."""
        write_atomically(self._folder / FILE, [json.dumps(asdict(run))])

    def end(self) -> None:
        """The run is at work no more."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def live_runs() -> list[LiveRun]:
    """Return this user's local runs that are at work, the newest first."""
    return sorted(_found(), key=lambda run: run.began, reverse=True)


def live_run(folder: Path | None = None) -> LiveRun | None:
    """Return the newest local run at work, or the newest in a folder: its own, or one that runs have theirs in.

    Raises:
        CommandError: there is none in that folder.
    """
    runs = live_runs()
    if folder is None:
        return next(iter(runs), None)
    place = folder.resolve()
    for run in runs:
        if place in (Path(run.folder), Path(run.folder).parent):
            return run
    there = f"at work are {listed(map(str, runs))}" if runs else "none is at work on this machine"
    raise CommandError(f"--folder {folder}: no local run is at work there; {there}")


def abandoned() -> Iterator[tuple[Path, str]]:
    """Yield what this user's local runs left that were killed as a whole, so that nobody was there to remove it.

    That is a folder in shared memory and, as :attr:`LiveRun.servers` has it, that of the servers.
    """
    for folder, locked in _folders():
        with contextlib.suppress(OSError, ValueError):
            # A run begins with a folder, and has the lock on it a moment later.
            if locked or time.time() - folder.stat().st_mtime < _BEGIN_SECONDS or _is_alive(_process(folder)):
                continue
            servers = ""
            with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
                servers = _read(folder / FILE).servers
            # Another run may have the folder by now, and no other folder is ever to be removed.
            mine = Path(servers).name == SERVERS and servers not in {run.servers for run in _found()}
            yield folder, servers if mine else ""


def _found() -> Iterator[LiveRun]:
    for folder, locked in _folders():
        # Anybody may put a folder there, and take it away at any moment.
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            if locked:
                yield _read(folder / FILE)


def _folders() -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this user's local runs in shared memory, and whether the run is at work."""
    try:
        folders = list(statefile.default_directory().parent.glob(f"{PREFIX}*"))
    except OSError:
        # On a system without shared memory no run keeps its state files there.
        return
    for folder in folders:
        # As above.
        with contextlib.suppress(OSError):
            descriptor = untrusted.open_folder(folder)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                locked = _is_locked(descriptor)
            finally:
                os.close(descriptor)
            yield folder, locked


def _process(folder: Path) -> int:
    """Return the process that made a folder of a local run. Raises :class:`ValueError` for another folder."""
    return int(folder.name.removeprefix(PREFIX).partition("-")[0])


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _read(path: Path) -> LiveRun:
    """Return what a run says of itself. Raises as a look into JSON of another form does, for anything else."""
    descriptor = untrusted.open_file(path)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("no file")
        fields: dict[str, Any] = json.loads(file.read(_MOST_BYTES))
    if any(type(fields[name]) is not (float if name == "began" else str) for name in LiveRun.__annotations__):
        raise TypeError("fields")
    return LiveRun(**fields)
