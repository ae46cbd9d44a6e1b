"""The ranks' state files: which there are, and which process of each rank counts.

Anybody may write into the folder, so nothing in it is believed further than :func:`laggard.shared.statefile.read` and
this module check.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from laggard.shared import statefile, untrusted
from laggard.shared.phases import RankState
from laggard.shared.statefile import Snapshot, StateFileError
from laggard_exporter.logs import LogOnce
from laggard_exporter.ranks.deaths import Deaths

#: What becomes of a state file in a scrape.
STATE_FILE_RESULTS = ("exported", "superseded", "expired", "rejected", "no_run")

#: A dead rank is exported for this long after its last sign of life, in seconds; then its file is removed.
DEAD_FILE_SECONDS = 15 * 60

#: Files of one user beyond this number are rejected: nobody can fill the scrape for the others.
FILES_PER_USER = 256

NANOSECONDS = 1_000_000_000

_logger = logging.getLogger(__name__)


class Rank(NamedTuple):
    """A rank's file as read at ``now_ns``, and the user that owns it."""

    file: Snapshot
    now_ns: int
    user: int

    @property
    def failed(self) -> bool:
        """Whether the process is gone without a clean end."""
        return not self.file.alive and self.file.state is not RankState.FINISHED

    def age(self, time_ns: int) -> float:
        """Return the seconds since a time of the file."""
        return (self.now_ns - time_ns) / NANOSECONDS


class RankProcess(NamedTuple):
    """The live process of a rank, as the exporter's own process namespace numbers it."""

    run: str
    rank: int
    pid: int

    @property
    def labels(self) -> tuple[str, str]:
        """Values of the labels that every rank metric carries."""
        return self.run, str(self.rank)


class RankFiles:
    """The newest process of each run and rank in a folder.

    ``clock`` gives nanoseconds since boot. A file that is rejected is logged at ``level``: of several that read the
    same folder one is enough to say it. ``deaths`` is told of each process that lives, and says when it died.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], int] = statefile.boottime_ns,
        level: int = logging.DEBUG,
        deaths: Deaths | None = None,
    ) -> None:
        self.exists = False
        """Whether the newest reading found the folder."""
        self.results: Counter[str] = Counter()
        """What became of each file in the newest reading."""
        self.failed: list[Rank] = []
        """The newest process of each run and rank without a clean end in that reading, whether or not another lives."""
        self._directory = directory
        self._clock = clock
        self._level = level
        self._deaths = deaths
        #: Names of the files whose process lived at the newest reading.
        self._alive: set[str] = set()
        self._log = LogOnce(_logger)

    def processes(self) -> list[RankProcess]:
        """Return the ranks whose process lives and can be seen. Raises as :meth:`newest`."""
        return [
            RankProcess(rank.file.facts.run, rank.file.facts.rank, rank.file.holder_pid)
            for rank in self.newest()
            if rank.file.alive and rank.file.holder_pid
        ]

    def newest(self, *, clean: bool = False) -> list[Rank]:
        """Return the newest process of each run and rank; with ``clean`` expired files are removed.

        Raises :class:`OSError` for a folder that cannot be listed; a missing one is empty.
        """
        self.results = Counter(dict.fromkeys(STATE_FILE_RESULTS, 0))
        self.failed = []
        try:
            directory = untrusted.open_folder(self._directory)
        except FileNotFoundError:
            self.exists = False
            return []
        self.exists = True
        try:
            return self._newest(directory, clean=clean)
        finally:
            os.close(directory)

    def _newest(self, directory: int, *, clean: bool) -> list[Rank]:
        newest: dict[tuple[str, int], Rank] = {}
        failed: dict[tuple[str, int], Rank] = {}
        read: list[Snapshot] = []
        alive: set[str] = set()
        for name, user in self._names(directory):
            try:
                rank = self._read(name, user)
            except StateFileError as error:
                # A rank that ends removes its file, maybe just now.
                if not isinstance(error.__cause__, FileNotFoundError):
                    self._reject(str(error))
                continue
            read.append(rank.file)
            if rank.file.alive:
                alive.add(name)
            result = _classify(newest, rank, self._last_sign_of_life(rank.file))
            if result == "rejected":
                self._reject(
                    f"rank {rank.file.facts.rank} of run {rank.file.facts.run!r} has files of several users in "
                    f"{self._directory}: the process that lives and is older counts"
                )
                continue
            if result in {"exported", "superseded"} and rank.failed:
                key = (rank.file.facts.run, rank.file.facts.rank)
                failed[key] = max(failed.get(key, rank), rank, key=_age_order)
            self.results[result] += 1
            if clean and result == "expired":
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)
        self.results["exported"] = len(newest)
        self.failed = list(failed.values())
        self._alive = alive
        if self._deaths is not None:
            self._deaths.keep(read)
        return list(newest.values())

    def _names(self, directory: int) -> Iterator[tuple[str, int]]:
        """Yield name and owner of each file that only its owner can write."""
        files: list[tuple[os.DirEntry[str], os.stat_result]] = []
        with os.scandir(directory) as entries:
            for file in entries:
                with contextlib.suppress(FileNotFoundError):
                    if file.name.endswith(statefile.SUFFIX):
                        files.append((file, file.stat(follow_symlinks=False)))
        # Who lived comes first, then the newest: where the exporter may not remove what dead ranks left, that must not
        # hide who lives, whose file is as old as its process on a file system in memory.
        files.sort(key=lambda known: (known[0].name not in self._alive, -known[1].st_mtime_ns, known[0].name))
        per_user: Counter[int] = Counter()
        for file, status in files:
            user = status.st_uid
            per_user[user] += 1
            if per_user[user] > FILES_PER_USER:
                self._reject(f"user {user} has more than {FILES_PER_USER} files in {self._directory}")
            elif stat.S_ISREG(status.st_mode) and status.st_mode & untrusted.OTHERS_WRITE:
                self._reject(f"state file {self._directory / file.name}: others than its owner can write it")
            else:
                yield file.name, user

    def _reject(self, reason: str) -> None:
        self.results["rejected"] += 1
        self._log(self._level, reason)

    def _read(self, name: str, user: int) -> Rank:
        path = self._directory / name
        file = statefile.read(path)
        # Asked after the file was read, so no true time of it can be later.
        now_ns = self._clock()
        if file.last_sign_ns > now_ns:
            raise StateFileError(f"state file {path}: its times lie in the future")
        if self._deaths is not None and file.alive:
            self._deaths.watch(file, path)
        return Rank(file if self._deaths is None else self._deaths.completed(file), now_ns, user)

    def _last_sign_of_life(self, file: Snapshot) -> int:
        return max(file.last_sign_ns, 0 if self._deaths is None else self._deaths.lived_ns(file))


def _classify(newest: dict[tuple[str, int], Rank], rank: Rank, last_sign_of_life: int) -> str:
    file = rank.file
    if not file.alive and rank.age(last_sign_of_life) > DEAD_FILE_SECONDS:
        return "expired"
    if not file.facts.run:
        return "no_run"
    key = (file.facts.run, file.facts.rank)
    other = newest.setdefault(key, rank)
    if other is rank:
        return "exported"
    if other.user != rank.user:
        # A restart is the same user's. Somebody else could take over a rank with a file that says to be newer.
        newest[key] = max(other, rank, key=lambda known: (known.file.alive, -known.file.facts.start_boottime_ns))
        return "rejected"
    newest[key] = max(other, rank, key=_age_order)
    return "superseded"


def _age_order(rank: Rank) -> tuple[int, bool]:
    return rank.file.facts.start_boottime_ns, rank.file.alive
