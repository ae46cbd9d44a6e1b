"""Collector ``state``: every rank on the node, from the state files that the ranks keep.

A rank that is stuck, stopped or dead is reported like any other: the file says where it stood. Anybody may write
into the folder, so nothing in it is believed further than :func:`laggard.statefile.read` and this module check.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from laggard import conventions, statefile
from laggard.conventions import Phase, RankState
from laggard.statefile import Snapshot, StateFileError
from laggard_exporter.conventions import PROCESS, STATE_DIRECTORY_EXISTS, STATE_FILE_RESULTS, STATE_FILES
from laggard_exporter.logs import LogOnce
from laggard_exporter.samples import Sample

#: A dead rank is exported for this long after its last sign of life, in seconds; then its file is removed.
DEAD_FILE_SECONDS = 15 * 60

#: Files of one user beyond this number are rejected: nobody can fill the scrape for the others.
FILES_PER_USER = 256

_NANOSECONDS = 1_000_000_000

_logger = logging.getLogger(__name__)

_Values = Iterable[tuple[tuple[str, ...], float]]


class _Rank(NamedTuple):
    """A rank's file as read at ``now_ns``. ``stopped`` is None where the process can not be seen."""

    file: Snapshot
    now_ns: int
    stopped: bool | None

    def age(self, time_ns: int) -> float:
        return (self.now_ns - time_ns) / _NANOSECONDS


def _single(value: float) -> _Values:
    return [((), value)]


def _info(rank: _Rank) -> _Values:
    facts = rank.file.facts
    values = (
        facts.host,
        facts.pid,
        facts.local_rank,
        facts.workload,
        facts.hardware_id,
        facts.peer_group,
        facts.restarts,
        facts.metrics_port,
    )
    return [(tuple(str(value) for value in values), 1)]


#: How each metric of the contract follows from a rank: pairs of its own label values and the value.
SERIES: dict[conventions.Metric, Callable[[_Rank], _Values]] = {
    conventions.PROCESS_UP: lambda rank: _single(rank.file.alive),
    conventions.PROCESS_STATE: lambda rank: [((state.label,), state is rank.file.state) for state in RankState],
    conventions.PROCESS_STOPPED: lambda rank: [] if rank.stopped is None else _single(rank.stopped),
    conventions.PROCESS_STEPS: lambda rank: _single(rank.file.steps),
    conventions.PROCESS_PROGRESS: lambda rank: _single(rank.file.progress),
    conventions.PROCESS_PHASE: lambda rank: [((phase.label,), phase is rank.file.phase) for phase in Phase],
    conventions.PROCESS_PHASE_AGE: lambda rank: _single(rank.age(rank.file.phase_entered_ns)),
    conventions.PROCESS_LAST_STEP_AGE: lambda rank: (
        _single(rank.age(rank.file.last_step_ns)) if rank.file.last_step_ns else []
    ),
    conventions.PROCESS_COLLECTIVE_SEQUENCE: lambda rank: [
        ((f"{group.identity:016x}",), group.started) for group in rank.file.groups
    ],
    conventions.PROCESS_IN_COLLECTIVE: lambda rank: [
        ((f"{group.identity:016x}",), group.started > group.finished) for group in rank.file.groups
    ],
    conventions.PROCESS_WORLD_SIZE: lambda rank: _single(rank.file.facts.world_size),
    conventions.PROCESS_START_TIMESTAMP: lambda rank: _single(rank.file.facts.start_unix_ns / _NANOSECONDS),
    conventions.PROCESS_INFO: _info,
}


class StateCollector:
    """Yields the rank metrics of all state files of ``directory``.

    ``procfs`` shows the processes of the exporter's own process namespace; ``clock`` gives nanoseconds since boot;
    ``log`` takes level and message of what is wrong with a file.
    """

    name = "state"

    def __init__(
        self,
        directory: Path,
        *,
        procfs: Path = Path("/proc"),
        clock: Callable[[], int] = statefile.boottime_ns,
        log: Callable[[int, str], None] | None = None,
    ) -> None:
        self._directory = directory
        self._procfs = procfs
        self._clock = clock
        self._log = log or LogOnce(_logger)

    def collect(self) -> Iterator[Sample]:
        """Yield the ranks of the folder. Raises :class:`OSError` for a folder that can not be listed."""
        results: Counter[str] = Counter(dict.fromkeys(STATE_FILE_RESULTS, 0))
        try:
            # Files are removed relative to this descriptor: the name of the folder may be swapped meanwhile.
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            self._log(logging.INFO, f"state folder {self._directory} does not exist yet: no rank has started here")
            yield Sample(STATE_DIRECTORY_EXISTS, (), 0)
        else:
            yield Sample(STATE_DIRECTORY_EXISTS, (), 1)
            try:
                for rank in self._newest(directory, results):
                    yield from _samples(rank)
            finally:
                os.close(directory)
        for result, count in results.items():
            yield Sample(STATE_FILES, (result,), count)

    def ranks(self) -> list[Snapshot]:
        """Return the files of the live ranks, none where the folder can not be read."""
        try:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            return [rank.file for rank in self._newest(directory, Counter()) if rank.file.alive]
        finally:
            os.close(directory)

    def _newest(self, directory: int, results: Counter[str]) -> Iterable[_Rank]:
        """Return the newest process of each run and rank; every file is counted in ``results``."""
        newest: dict[tuple[str, int], _Rank] = {}
        for name in self._names(directory, results):
            try:
                rank = self._read(name)
            except StateFileError as error:
                # A rank that ends removes its file, maybe just now.
                if not isinstance(error.__cause__, FileNotFoundError):
                    self._reject(results, str(error))
                continue
            result = self._classify(newest, rank)
            results[result] += 1
            if result == "expired":
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)
        results["exported"] = len(newest)
        return newest.values()

    def _names(self, directory: int, results: Counter[str]) -> list[str]:
        with os.scandir(directory) as entries:
            files = sorted(
                (file for file in entries if file.name.endswith(statefile.SUFFIX)), key=lambda file: file.name
            )
        names: list[str] = []
        per_user: Counter[int] = Counter()
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                user = file.stat(follow_symlinks=False).st_uid
                per_user[user] += 1
                if per_user[user] <= FILES_PER_USER:
                    names.append(file.name)
                else:
                    self._reject(results, f"user {user} has more than {FILES_PER_USER} files in {self._directory}")
        return names

    def _reject(self, results: Counter[str], reason: str) -> None:
        results["rejected"] += 1
        self._log(logging.WARNING, reason)

    def _read(self, name: str) -> _Rank:
        path = self._directory / name
        file = statefile.read(path)
        # Asked after the file was read, so no true time of it can be later.
        now_ns = self._clock()
        if _last_sign_of_life(file) > now_ns:
            raise StateFileError(f"state file {path}: its times lie in the future")
        return _Rank(file, now_ns, self._stopped(file.holder_pid))

    def _stopped(self, pid: int) -> bool | None:
        if pid == 0:
            return None
        try:
            status = (self._procfs / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        # The name of the command stands in parentheses and may hold some itself.
        state = status.rpartition(b")")[2].split()[:1]
        return state[0] in {b"T", b"t"} if state else None

    def _classify(self, newest: dict[tuple[str, int], _Rank], rank: _Rank) -> str:
        file = rank.file
        if not file.alive and rank.age(_last_sign_of_life(file)) > DEAD_FILE_SECONDS:
            return "expired"
        if not file.facts.run:
            return "no_run"
        key = (file.facts.run, file.facts.rank)
        other = newest.setdefault(key, rank)
        if other is rank:
            return "exported"
        newest[key] = max(other, rank, key=_age_order)
        return "superseded"


def _age_order(rank: _Rank) -> tuple[int, bool]:
    return rank.file.facts.start_boottime_ns, rank.file.alive


def _last_sign_of_life(file: Snapshot) -> int:
    return max(file.phase_entered_ns, file.last_step_ns, file.facts.start_boottime_ns)


def _samples(rank: _Rank) -> Iterator[Sample]:
    identity = (rank.file.facts.run, str(rank.file.facts.rank))
    for metric, values in SERIES.items():
        for labels, value in values(rank):
            yield Sample(PROCESS[metric], (*identity, *labels), value)
