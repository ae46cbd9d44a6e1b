"""Collector ``hang``: how far the collectives of each stalled rank have come, by its flight recorder.

A rank that shows no sign of progress for long leaves a dump in the state folder; without one there is nothing to read,
and nothing to export. A dump that is not of the process and of the moment that the state file tells is never read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from laggard.shared import dumps, statefile, untrusted
from laggard.shared.attributes import Attribute
from laggard.shared.names import prometheus_label
from laggard_exporter.entry import Entry
from laggard_exporter.hang.dump_file import DumpError
from laggard_exporter.hang.facts import MAX_GROUPS, MAX_PEERS, Facts
from laggard_exporter.hang.reader import read_facts
from laggard_exporter.logs import LogOnce
from laggard_exporter.ranks.families import family
from laggard_exporter.ranks.files import DEAD_FILE_SECONDS, Rank, RankFiles
from laggard_exporter.samples import Family, Sample

_GROUP = prometheus_label(Attribute.PROCESS_GROUP)
_HANG = "Only of a rank that shows no sign of progress. Source: torch's flight recorder."
HANG_ISSUED = family(
    "hang_issued",
    "gauge",
    f"Number of the newest collective that the rank has issued on a process group, of the {MAX_GROUPS} that matter "
    f"most. {_HANG}",
    _GROUP,
)
HANG_PENDING = family(
    "hang_pending",
    "gauge",
    "Number of the first collective on a process group that is not done on the rank; absent where all are. The call "
    "stands for the operation with the types and sizes to which all members must agree: of members at the same "
    f"number, one that differs calls something else. {_HANG}",
    _GROUP,
    prometheus_label(Attribute.COLLECTIVE_OPERATION),
    prometheus_label(Attribute.COLLECTIVE_CALL),
)
HANG_BEGUN = family(
    "hang_begun",
    "gauge",
    "1 when the rank's device has begun to work on the first collective on a process group that is not done; absent "
    f"where none is, and with gloo, which does not say. {_HANG}",
    _GROUP,
)
HANG_TRANSFER = family("hang_transfer", "gauge", f"1 while a send or a receive of the rank is not done. {_HANG}")
HANG_PEER = family(
    "hang_peer",
    "gauge",
    f"1 for each rank to which a send of the rank, or from which a receive, is not done; {MAX_PEERS} at most. {_HANG}",
    "training_peer_rank",
)
HANG_DUMPS = Family(
    "laggard_exporter_hang_dumps",
    "gauge",
    "Dumps of stalled ranks by what became of them in this scrape: read, rejected (it cannot be used, the log says "
    "why), waiting (for the next scrape).",
    ("result",),
)

_logger = logging.getLogger(__name__)

#: A dump that takes longer to be read is not; it takes a tenth of a second.
READ_SECONDS = 5.0
#: A scrape begins to read no further dump after so long; the others wait for the next one.
SCRAPE_SECONDS = 3.0

Read = Callable[[Path, int, float, int], Facts | None]


class HangCollector:
    """Yields what the dumps of this node's ranks say. ``read`` takes a path, its user and the time it may take."""

    name = "hang"

    def __init__(self, directory: Path, *, read: Read = read_facts) -> None:
        self._directory = directory
        self._ranks = RankFiles(directory)
        self._read = read
        #: By name of the file; None where it cannot be read.
        self._known: dict[str, Facts | None] = {}
        self._log = LogOnce(_logger)

    def collect(self) -> Iterator[Sample]:
        """Yield the facts of each stalled rank. Raises :class:`OSError` for a folder that cannot be listed."""
        until = time.monotonic() + SCRAPE_SECONDS
        names = self._names()
        ranks = {_name(rank): rank for rank in self._ranks.newest() if rank.file.alive} if names else {}
        counts = {"read": 0, "rejected": 0, "waiting": 0}
        known: dict[str, Facts | None] = {}
        for name in names:
            rank = ranks.get(name)
            if rank is None:
                continue
            if name not in self._known and time.monotonic() > until:
                counts["waiting"] += 1
                continue
            known[name] = found = self._known[name] if name in self._known else self._facts(name, rank)
            counts["rejected" if found is None else "read"] += 1
            if found is not None:
                yield from samples((rank.file.facts.run, str(rank.file.facts.rank)), found)
        self._known = known
        self._remove_old(names - ranks.keys())
        for result, count in counts.items():
            yield Sample(HANG_DUMPS, (result,), count)

    def _names(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {path.name for path in self._directory.iterdir() if path.name.startswith(dumps.PREFIX)}
        return set()

    def _facts(self, name: str, rank: Rank) -> Facts | None:
        path = self._directory / name
        try:
            return self._read(path, rank.user, READ_SECONDS, rank.file.facts.rank)
        except DumpError as error:
            self._log(logging.WARNING, f"dump {path} is not used: {error}")
            return None

    def _remove_old(self, names: set[str]) -> None:
        """Remove what ranks have left that were killed while they hung."""
        if not names:
            return
        with contextlib.suppress(OSError):
            directory = untrusted.open_folder(self._directory)
            try:
                for name in names:
                    _remove_old(directory, name)
            finally:
                os.close(directory)


def _remove_old(directory: int, name: str) -> None:
    with contextlib.suppress(OSError):
        if time.time() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime > DEAD_FILE_SECONDS:
            os.unlink(name, dir_fd=directory)


def _name(rank: Rank) -> str:
    file = rank.file
    word = statefile.pack(file.phase, file.phase_entered_ns)
    return dumps.file_name(file.facts.run, file.facts.rank, file.facts.start_boottime_ns, file.progress, word)


def samples(identity: tuple[str, str], found: Facts) -> Iterator[Sample]:
    """Yield what is exported of a dump, for a run and rank."""
    yield Sample(HANG_TRANSFER, identity, found.transfer)
    for peer in found.peers:
        yield Sample(HANG_PEER, (*identity, str(peer)), 1)
    for group in found.groups:
        labels = (*identity, group.group)
        yield Sample(HANG_ISSUED, labels, group.issued)
        if group.pending is not None:
            yield Sample(HANG_PENDING, (*labels, group.operation, group.call), group.pending)
        if group.begun is not None:
            yield Sample(HANG_BEGUN, labels, group.begun)


ENTRY = Entry(
    "how far the collectives of each stalled rank have come, by its flight recorder",
    (HANG_ISSUED, HANG_PENDING, HANG_BEGUN, HANG_TRANSFER, HANG_PEER, HANG_DUMPS),
    lambda options: HangCollector(options.state_directory),
)
