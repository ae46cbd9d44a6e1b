"""Profiles that are asked for over the network: requests to the ranks of this node, their replies, and the files.

A request goes the way that ``laggard profile`` goes on the node itself, by a control file in the state folder; the rank
decides whether it obeys. Nothing here names a path that a caller chose: the rank writes into its state folder, and only
files of requests that were made here are handed out.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from laggard.shared import control, untrusted
from laggard.shared.control import ControlError, Request
from laggard_exporter.ranks.files import Rank, RankFiles

#: Steps that may be asked for at once: a profile of more is large, and slows the rank for long.
MAX_STEPS = 100

#: A trace beyond this size is left on the node, in bytes.
LARGEST_TRACE = 1 << 30

#: A rank looks for requests once a second; one that takes none for so long does not obey.
ACCEPT_SECONDS = 15.0

#: Until then a profile is there, or none will be.
PROFILE_SECONDS = 900.0

#: Requests that are remembered, with what became of them.
_REMEMBERED = 64

#: A clock that was set back a little must not hide the file that a rank wrote, in seconds.
_LATE = 5.0


class ProfilingError(Exception):
    """What was asked cannot be done; the text says why, ``status`` is HTTP's."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class _Asked:
    """One request."""

    id: str
    run: str
    rank: int
    user: int
    #: On the wall's clock, which files have, and on the one that nobody sets.
    began: float
    since: float
    status: str = "asked"
    reason: str = ""

    @property
    def stem(self) -> str:
        return control.stem(self.run, self.rank)

    @property
    def over(self) -> bool:
        return self.status in {"done", "failed"}


class Profiling:
    """Asks the ranks whose state files lie in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ranks = RankFiles(directory)
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._lock = threading.Lock()

    def request(self, run: str, rank: int, steps: int, *, stacks: bool = False) -> str:
        """Ask a rank for a profile of its next steps; return the request's id. Raises :class:`ProfilingError`."""
        if not 1 <= steps <= MAX_STEPS:
            raise ProfilingError(HTTPStatus.BAD_REQUEST, f"steps {steps} is not 1 to {MAX_STEPS}")
        with self._lock:
            request = Request(control.new_id(), "profile", steps=steps, stacks=stacks)
            asked = _Asked(request.id, run, rank, self._live(run, rank).user, time.time(), time.monotonic())
            for other in self._asked.values():
                if other.stem == asked.stem and not self._look(other).over:
                    raise ProfilingError(HTTPStatus.CONFLICT, f"rank {rank} of {run} is asked for a profile already")
            try:
                control.write(self._directory / f"{asked.stem}{control.REQUEST_SUFFIX}", request)
            except OSError as error:
                # In a sticky folder nobody replaces the request of another user.
                raise ProfilingError(
                    HTTPStatus.CONFLICT, f"the control file of rank {rank}: {error.strerror}"
                ) from error
            self._asked[request.id] = asked
            while len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
            return request.id

    def status(self, id_: str) -> tuple[str, str]:
        """Return what became of a request and, where it failed, why. Raises :class:`ProfilingError`."""
        with self._lock:
            asked = self._look(self._known(id_))
            return asked.status, asked.reason

    def withdraw(self, id_: str) -> tuple[str, str]:
        """Take a request back, and return as :meth:`status` does. Raises :class:`ProfilingError`."""
        with self._lock:
            asked = self._look(self._known(id_))
            if not asked.over:
                asked.status, asked.reason = "failed", "profile withdrawn"
                self._remove(asked)
            return asked.status, asked.reason

    def trace(self, id_: str) -> tuple[BinaryIO, int]:
        """Return the file that a rank wrote for a request, open, and its size. Raises :class:`ProfilingError`."""
        with self._lock:
            asked = self._look(self._known(id_))
            if asked.status != "done":
                raise ProfilingError(HTTPStatus.CONFLICT, f"the profile is {asked.status}, not done")
            return self._open(asked)

    def _live(self, run: str, rank: int) -> Rank:
        try:
            newest = self._ranks.newest()
        except OSError as error:
            raise ProfilingError(HTTPStatus.SERVICE_UNAVAILABLE, f"the state folder: {error.strerror}") from error
        for known in newest:
            if (known.file.facts.run, known.file.facts.rank) == (run, rank) and known.file.alive:
                return known
        raise ProfilingError(HTTPStatus.NOT_FOUND, f"rank {rank} of {run!r} does not live on this node")

    def _known(self, id_: str) -> _Asked:
        asked = self._asked.get(id_)
        if asked is None:
            raise ProfilingError(HTTPStatus.NOT_FOUND, f"no request {id_[:64]!r}")
        return asked

    def _look(self, asked: _Asked) -> _Asked:
        """Look for a reply; the control file goes when there is a last one, or none to be hoped for."""
        if asked.over:
            return asked
        with contextlib.suppress(ControlError):
            reply = control.read_reply(self._directory / f"{asked.stem}{control.REPLY_SUFFIX}", asked.user)
            if reply.id == asked.id:
                asked.status, asked.reason = reply.status, reply.reason
        if not asked.over and (reason := self._hopeless(asked)):
            asked.status, asked.reason = "failed", reason
        if asked.over:
            self._remove(asked)
        return asked

    def _remove(self, asked: _Asked) -> None:
        for suffix in (control.REQUEST_SUFFIX, control.REPLY_SUFFIX):
            # The reply of a rank of another user stays: its folder lets only the owner remove it.
            with contextlib.suppress(OSError):
                (self._directory / f"{asked.stem}{suffix}").unlink()

    def _hopeless(self, asked: _Asked) -> str:
        """Return why nothing more is to come; empty while something may."""
        passed = time.monotonic() - asked.since
        if asked.status == "asked" and passed > ACCEPT_SECONDS:
            return (
                f"no answer after {passed:.0f} s: does the rank obey this user (LAGGARD_CONTROL_USER), and are its "
                "control files on?"
            )
        if passed > PROFILE_SECONDS:
            return f"no profile after {passed:.0f} s"
        try:
            self._live(asked.run, asked.rank)
        except ProfilingError as error:
            return f"ended before its profile was there: {error}"
        return ""

    def _open(self, asked: _Asked) -> tuple[BinaryIO, int]:
        """Open the newest file that the rank's user wrote since it was asked."""
        found: list[tuple[float, str]] = []
        wanted = re.compile(rf"{re.escape(asked.stem)}\.\d{{8}}T\d{{6}}\.profile\.json")
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if wanted.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == asked.user:
                        found.append((status.st_mtime, entry.name))
        newest = max(found, default=(0.0, ""))
        if newest[0] < asked.began - _LATE:
            raise ProfilingError(HTTPStatus.NOT_FOUND, "the file is not in the state folder any more")
        try:
            descriptor = untrusted.open_file(self._directory / newest[1])
        except OSError as error:
            raise ProfilingError(HTTPStatus.FORBIDDEN, f"{newest[1]}: {error.strerror}") from error
        file = os.fdopen(descriptor, "rb")
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != asked.user or status.st_size > LARGEST_TRACE:
            file.close()
            raise ProfilingError(
                HTTPStatus.FORBIDDEN, f"{newest[1]} has {status.st_size} bytes; fetch it from the state folder"
            )
        return file, status.st_size
