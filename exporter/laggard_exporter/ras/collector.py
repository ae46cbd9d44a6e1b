"""Collector ``ras``: what NCCL's RAS service says of a job in which nothing moves.

It is asked only where each rank of a job on this host shows no sign of progress, by a thread that no scrape waits for.
What it said is exported until a rank goes on. A few hosts of a job ask, since each answer is of all of its ranks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard_exporter.entry import Entry
from laggard_exporter.logs import LogOnce
from laggard_exporter.ranks.families import family
from laggard_exporter.ranks.files import Rank, RankFiles
from laggard_exporter.ras import question as questions
from laggard_exporter.ras.answer import RasError
from laggard_exporter.ras.client import NobodyError
from laggard_exporter.ras.facts import Facts
from laggard_exporter.ras.question import MAX_RANKS, Question
from laggard_exporter.samples import Family, Sample

_STALLED = "Only while a run stands still, of at most"
RAS_BEHIND = family(
    "ras_behind",
    "gauge",
    "Collectives by which a member of a NCCL communicator is ahead of the rank, where the rank is ahead of no member "
    f"of any. {_STALLED} {MAX_RANKS} ranks. Source: NCCL RAS.",
    "training_communicator",
)
RAS_MISSING = family(
    "ras_missing",
    "gauge",
    "1 for a rank that stopped answering NCCL's RAS service when the run came to a standstill, 2 for one that it had "
    f"given up before, where more than half of the run answers. {_STALLED} {MAX_RANKS} ranks. Source: NCCL RAS.",
)
RAS_QUESTIONS = Family(
    "laggard_exporter_ras_questions_total",
    "counter",
    "Questions to NCCL's RAS service by what became of them: answered, nobody (nobody listens), rejected (the log says "
    "why).",
    ("result",),
)

#: Ranks without a sign of progress for longer than this, in seconds, may be stalled.
SUSPECT_SECONDS = 10.0
#: Seconds after which a job is asked about again, beside half of the time that it has stood still.
AGAIN_SECONDS = 15.0
#: Hosts of a job that ask.
ASKERS = 4

_logger = logging.getLogger(__name__)

Ask = Callable[[Question], Facts]


@dataclass
class _Standstill:
    """A run that stands still on this host. The thread that asks writes ``found`` and ``lost``."""

    #: Since when each rank does, in nanoseconds since boot: another moment is another standstill.
    since: tuple[tuple[int, int], ...]
    asked: float | None = None
    found: Facts | None = None
    #: Ranks that did not answer and were not given up yet: RAS does that after a minute.
    lost: frozenset[int] = frozenset()

    def add(self, found: Facts) -> None:
        """Take what RAS says now."""
        self.lost |= {rank for rank, dead in found.missing if not dead}
        self.found = found

    def samples(self, run: str) -> Iterator[Sample]:
        """Yield what is exported of the run."""
        for each in self.found.behind if self.found else ():
            yield Sample(RAS_BEHIND, (run, str(each.rank), each.communicator), each.most - each.issued)
        for each in self.found.missing if self.found else ():
            yield Sample(RAS_MISSING, (run, str(each.rank)), 1 if each.rank in self.lost else 2)


class RasCollector:
    """Yields what RAS says. ``ask`` takes a question, ``clock`` gives seconds."""

    name = "ras"

    def __init__(
        self,
        directory: Path,
        *,
        procfs: Path = Path("/proc"),
        ask: Ask = questions.ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranks = RankFiles(directory)
        self._procfs = procfs
        self._ask = ask
        self._clock = clock
        self._runs: dict[str, _Standstill] = {}
        self._results: Counter[str] = Counter(dict.fromkeys(("answered", "nobody", "rejected"), 0))
        self._thread: threading.Thread | None = None
        self._log = LogOnce(_logger)

    def collect(self) -> Iterator[Sample]:
        """Yield what is known of runs that stand still. Raises :class:`OSError` for a folder that cannot be listed."""
        by_run: defaultdict[str, list[Rank]] = defaultdict(list)
        for rank in self._ranks.newest():
            if rank.file.alive:
                by_run[rank.file.facts.run].append(rank)
        before, self._runs = self._runs, {}
        due: list[tuple[_Standstill, Question]] = []
        for run, ranks in by_run.items():
            age = min(rank.age(rank.file.phase_entered_ns) for rank in ranks)
            if age <= SUSPECT_SECONDS or not _asks(ranks):
                continue
            since = tuple(sorted((rank.file.facts.rank, rank.file.phase_entered_ns) for rank in ranks))
            known = before.get(run)
            standstill = known if known is not None and known.since == since else _Standstill(since)
            self._runs[run] = standstill
            yield from standstill.samples(run)
            now = self._clock()
            if standstill.asked is None or now - standstill.asked >= max(AGAIN_SECONDS, age / 2):
                due.append((standstill, _question(ranks, self._procfs)))
        self._start(due)
        for result, count in self._results.items():
            yield Sample(RAS_QUESTIONS, (result,), count)

    def _start(self, due: Sequence[tuple[_Standstill, Question]]) -> None:
        """Ask about each run in turn, unless a thread still asks."""
        if not due or (self._thread is not None and self._thread.is_alive()):
            return
        for standstill, _ in due:
            standstill.asked = self._clock()
        thread = threading.Thread(target=self._work, args=(due,), name="ras", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a full process table; a later scrape tries again
            self._log(logging.WARNING, f"NCCL RAS is not asked: {error}")
            return
        self._thread = thread

    def _work(self, due: Sequence[tuple[_Standstill, Question]]) -> None:
        for standstill, question in due:
            self._results[self._answer(standstill, question)] += 1

    def _answer(self, standstill: _Standstill, question: Question) -> str:
        """Ask, and return what became of it."""
        try:
            standstill.add(self._ask(question))
        except NobodyError as error:
            self._log(logging.INFO, f"NCCL RAS: {error}")
            return "nobody"
        except RasError as error:
            self._log(logging.WARNING, f"NCCL RAS: {error}")
            return "rejected"
        return "answered"


def _asks(ranks: Sequence[Rank]) -> bool:
    """Return whether a host with these ranks is one of those that ask."""
    world_size = ranks[0].file.facts.world_size
    stride = max(1, -(-world_size // ASKERS))
    return any(rank.file.facts.rank % stride == 0 for rank in ranks)


def _question(ranks: Sequence[Rank], procfs: Path) -> Question:
    first = min(ranks, key=lambda rank: rank.file.facts.rank)
    # In namespaces of their own, two processes of a host may have the same number.
    counts = Counter(rank.file.facts.pid for rank in ranks)
    known = ((rank.file.facts.pid, rank.file.facts.rank) for rank in ranks if counts[rank.file.facts.pid] == 1)
    facts = first.file.facts
    return Question(str(procfs), first.file.holder_pid, first.user, facts.world_size, tuple(known))


ENTRY = Entry(
    "what NCCL's RAS service says of a run that stands still: who does not answer, who has issued fewer collectives",
    (RAS_BEHIND, RAS_MISSING, RAS_QUESTIONS),
    lambda options: RasCollector(options.state_directory, procfs=options.procfs),
)
