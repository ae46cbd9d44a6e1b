"""Collector ``state``: every rank on the node, from the state files that the ranks keep.

A rank that is stuck, stopped or dead is reported by what its file says of where it stood. What a rank does that goes on
is another thing a moment later, and left out.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from laggard.shared import metrics, process_metrics, statefile
from laggard.shared.attributes import Attribute
from laggard.shared.names import prometheus_label, prometheus_name
from laggard.shared.phases import STILL_SECONDS, STOOD_STILL_SECONDS, Condition, Phase, RankState
from laggard.shared.process_metrics import PROCESS_METRICS
from laggard.shared.statefile import EndedBy, Ending, Snapshot
from laggard_exporter.conventions import PREFIX
from laggard_exporter.entry import Entry
from laggard_exporter.kernel_log import OOM_KILL, LogReader
from laggard_exporter.logs import LogOnce
from laggard_exporter.ranks import processes
from laggard_exporter.ranks.deaths import OUT_OF_MEMORY, Deaths
from laggard_exporter.ranks.files import NANOSECONDS, Rank, RankFiles
from laggard_exporter.samples import Family, Sample

STATE_DIRECTORY_EXISTS = Family(
    f"{PREFIX}_state_directory_exists",
    "gauge",
    "1 when the folder of state files exists; the first rank on the node makes it.",
)
STATE_FILES = Family(
    f"{PREFIX}_state_files",
    "gauge",
    "State files by what became of them in this scrape: exported, superseded by a newer process of the same run and "
    "rank, expired (its process died long ago), rejected (no usable state file), no_run (run not known yet).",
    ("result",),
)

PROCESS = {
    metric: Family(
        prometheus_name(metric),
        "counter" if metric.kind == "counter" else "gauge",
        metric.description,
        tuple(prometheus_label(name) for name in (Attribute.RUN, Attribute.RANK, *metric.attributes)),
    )
    for metric in PROCESS_METRICS
}

_logger = logging.getLogger(__name__)

#: Signals by which a person, a launcher or a scheduler asks a process to end.
_REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
#: An end so soon after such a signal was asked for, whatever a handler made of it.
_GRACE_SECONDS = 15 * 60
#: But not what the kernel does to a process for what it did itself.
_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", OUT_OF_MEMORY}
#: What a shell adds to a signal's number for an exit code.
_SHELL_SIGNAL = 128

_Values = Iterable[tuple[tuple[str, ...], float]]


class _Rank(NamedTuple):
    """A rank, and whether its process is stopped: None where it cannot be seen. ``usual_step`` is in seconds, or 0."""

    known: Rank
    stopped: bool | None
    usual_step: float

    @property
    def file(self) -> Snapshot:
        return self.known.file

    @property
    def phase_age(self) -> float:
        return self.known.age(self.file.phase_entered_ns)

    @property
    def condition(self) -> Condition:
        """Whether the rank stands still, and why."""
        if self.file.state is RankState.FINISHED:
            return Condition.ENDED
        if not self.file.alive:
            return Condition.DEAD
        if self.stopped:
            return Condition.STOPPED
        return Condition.QUIET if self.phase_age > max(STILL_SECONDS, self.usual_step) else Condition.GOES_ON


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
SERIES: dict[metrics.Metric, Callable[[_Rank], _Values]] = {
    process_metrics.PROCESS_UP: lambda rank: _single(rank.file.alive),
    process_metrics.PROCESS_STATE: lambda rank: [((state.label,), state is rank.file.state) for state in RankState],
    process_metrics.PROCESS_CONDITION: lambda rank: _single(rank.condition),
    process_metrics.PROCESS_STANDSTILL: lambda rank: _single(rank.phase_age),
    process_metrics.PROCESS_STOPPED: lambda rank: [] if rank.stopped is None else _single(rank.stopped),
    process_metrics.PROCESS_STEPS: lambda rank: _single(rank.file.steps),
    process_metrics.PROCESS_PROGRESS: lambda rank: _single(rank.file.progress),
    process_metrics.PROCESS_PHASE: lambda rank: [
        ((rank.file.facts.host, phase.label), phase is rank.file.phase) for phase in Phase
    ],
    process_metrics.PROCESS_PHASE_AGE: lambda rank: _single(rank.phase_age),
    process_metrics.PROCESS_LAST_STEP_AGE: lambda rank: (
        _single(rank.known.age(rank.file.last_step_ns)) if rank.file.last_step_ns else []
    ),
    process_metrics.PROCESS_COLLECTIVE_SEQUENCE: lambda rank: [
        ((f"{group.identity:016x}",), group.started) for group in rank.file.groups
    ],
    process_metrics.PROCESS_COLLECTIVE_OPERATION: lambda rank: [
        ((f"{group.identity:016x}",), group.operation) for group in rank.file.groups if group.started
    ],
    process_metrics.PROCESS_IN_COLLECTIVE: lambda rank: [
        ((f"{group.identity:016x}",), group.started > group.finished) for group in rank.file.groups
    ],
    process_metrics.PROCESS_WORLD_SIZE: lambda rank: _single(rank.file.facts.world_size),
    process_metrics.PROCESS_START_TIMESTAMP: lambda rank: _single(rank.file.facts.start_unix_ns / NANOSECONDS),
    process_metrics.PROCESS_INFO: _info,
}

#: Those of a rank that stands still, or has lately.
STILL = frozenset(
    {
        process_metrics.PROCESS_CONDITION,
        process_metrics.PROCESS_STANDSTILL,
        process_metrics.PROCESS_STOPPED,
        process_metrics.PROCESS_PHASE,
        process_metrics.PROCESS_COLLECTIVE_SEQUENCE,
        process_metrics.PROCESS_COLLECTIVE_OPERATION,
        process_metrics.PROCESS_IN_COLLECTIVE,
    }
)


class StateCollector:
    """Yields the rank metrics of all state files of ``directory``.

    ``procfs`` shows the processes of the exporter's own process namespace, ``sysfs`` their control groups, ``log`` whom
    the kernel killed for lack of memory; ``clock`` gives nanoseconds since boot.
    """

    name = "state"

    def __init__(
        self,
        directory: Path,
        *,
        procfs: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        clock: Callable[[], int] = statefile.boottime_ns,
        log: LogReader | None = None,
    ) -> None:
        self._directory = directory
        self._deaths = Deaths(procfs=procfs, clock=clock, log=log)
        self._ranks = RankFiles(directory, clock=clock, level=logging.WARNING, deaths=self._deaths)
        self._procfs = procfs
        self._sysfs = sysfs
        self._log = LogOnce(_logger)
        #: When each rank was seen to stand still, in nanoseconds since boot.
        self._stood_still: dict[tuple[str, int], int] = {}
        #: Steps of each rank when it was first seen, and when the newest of them ended.
        self._first: dict[tuple[str, int], tuple[int, int]] = {}

    def collect(self) -> Iterator[Sample]:
        """Yield the ranks of the folder. Raises :class:`OSError` for a folder that cannot be listed."""
        ranks = self._ranks.newest(clean=True)
        if not self._ranks.exists:
            self._log(logging.INFO, f"state folder {self._directory} does not exist yet: no rank has started here")
        yield Sample(STATE_DIRECTORY_EXISTS, (), self._ranks.exists)
        stood_still, self._stood_still = self._stood_still, {}
        first, self._first = self._first, {}
        for known in ranks:
            key = (known.file.facts.run, known.file.facts.rank)
            self._first[key], usual_step = _pace(first.get(key), known.file)
            stopped = processes.stopped(self._procfs, self._sysfs, known.file.holder_pid)
            rank = _Rank(known, stopped, usual_step)
            seen = stood_still.get(key) if rank.condition is Condition.GOES_ON else known.now_ns
            if seen is not None and known.age(seen) <= STOOD_STILL_SECONDS:
                self._stood_still[key] = seen
            yield from _samples(rank, in_detail=key in self._stood_still)
        for known in self._ranks.failed:
            yield from _failure(known, self._deaths)
        for result, count in self._ranks.results.items():
            yield Sample(STATE_FILES, (result,), count)


def _pace(first: tuple[int, int] | None, file: Snapshot) -> tuple[tuple[int, int], float]:
    """Return what is kept of a rank's first steps, and the seconds that a step took since: 0 where none ended."""
    if first is None or not first[1] or file.steps < first[0]:
        return (file.steps, file.last_step_ns), 0.0
    steps = file.steps - first[0]
    return first, max(file.last_step_ns - first[1], 0) / NANOSECONDS / steps if steps else 0.0


def _failure(rank: Rank, deaths: Deaths) -> Iterator[Sample]:
    """Yield when and how a process ended that did not end cleanly, and how long its last step was over."""
    file = rank.file
    by, with_what = _cause(file.ending)
    ended = file.ended_ns
    if not ended:
        by = "unseen"
        ended = max(file.phase_entered_ns, file.last_step_ns, file.facts.start_boottime_ns, deaths.lived_ns(file))
    if file.asked_by in _REQUESTS and with_what not in _FAULTS and ended - file.asked_ns < _GRACE_SECONDS * NANOSECONDS:
        by, with_what = "request", signal.Signals(file.asked_by).name
    unix = (file.facts.start_unix_ns + ended - file.facts.start_boottime_ns) / NANOSECONDS
    facts = file.facts
    labels = (facts.run, str(facts.rank), facts.host, file.phase.label, by, with_what)
    yield Sample(PROCESS[process_metrics.PROCESS_FAILURE_TIMESTAMP], labels, unix)
    # An exception leaves all phases on its way, so these say nothing of a wait.
    if by != "unseen" and file.last_step_ns:
        age = max(ended - file.last_step_ns, 0) / NANOSECONDS
        yield Sample(PROCESS[process_metrics.PROCESS_FAILURE_LAST_STEP_AGE], labels[:2], age)


def _cause(ending: Ending) -> tuple[str, str]:
    """Return by what a process ended, and with what: the name of an exception or a signal, or the exit code.

    Of a process that did not say so, by nothing known, and with what the kernel says.
    """
    if ending.exception and ending.by is not EndedBy.SIGNAL:
        return "exception" if ending.by is EndedBy.EXCEPTION else "unknown", ending.exception
    said = ending.by is not EndedBy.UNKNOWN
    code = os.waitstatus_to_exitcode(ending.code) if not said else ending.code
    by_signal = ending.by is EndedBy.SIGNAL or code < 0
    # A handler that exits says which signal it had as a shell does.
    number = abs(code) if by_signal else code - _SHELL_SIGNAL
    if number in set(signal.Signals):
        name = signal.Signals(number).name
        by = "signal" if said else "unknown"
        return "request" if number in _REQUESTS else by, name
    if said:
        return "exit", str(code)
    return "unknown", f"exit code {code}" if code else ""


def _samples(rank: _Rank, *, in_detail: bool) -> Iterator[Sample]:
    identity = (rank.file.facts.run, str(rank.file.facts.rank))
    for metric, values in SERIES.items():
        if metric in STILL and not in_detail:
            continue
        for labels, value in values(rank):
            yield Sample(PROCESS[metric], (*identity, *labels), value)


ENTRY = Entry(
    "every rank on the node, from its state file",
    (STATE_DIRECTORY_EXISTS, STATE_FILES, *PROCESS.values()),
    lambda options: StateCollector(
        options.state_directory,
        procfs=options.procfs,
        sysfs=options.sysfs,
        log=options.shared_kernel_log.reader(OOM_KILL),
    ),
)
