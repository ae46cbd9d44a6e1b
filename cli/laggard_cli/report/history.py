"""A run over time, as Prometheus keeps it. What is not there is NaN, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from laggard.shared.attributes import RUN_FACTS, Attribute
from laggard.shared.metrics import (
    MEMORY_USAGE,
    PHASE_DURATION,
    RANK_START_TIMESTAMP,
    RUN_INFO,
    SIGNAL_AVAILABLE,
    STEP_DURATION,
    STEP_OWN_DURATION,
    STEPS,
)
from laggard.shared.names import prometheus_label, prometheus_name
from laggard_cli.clusters import Run
from laggard_cli.prometheus import Prometheus, Range, Sample
from laggard_cli.report.arrays import Array
from laggard_cli.report.span import Span

RANK, PHASE, HOST = (prometheus_label(each) for each in (Attribute.RANK, Attribute.PHASE, Attribute.HOST_NAME))
GROUP, KIND, SIGNAL = (
    prometheus_label(each) for each in (Attribute.PEER_GROUP, Attribute.MEMORY_KIND, Attribute.SIGNAL)
)
_START = prometheus_name(RANK_START_TIMESTAMP)
#: Facts that change seldom are asked for at so many moments.
_FEW = 12
#: Of the number of a rank.
_DIGITS = 9

#: Where a rank stands, as its state file says; a later one of these wins where several hold.
PLACES = ("at work", "waits in a collective", "stopped", "process died", "ended cleanly")


class Counted:
    """A server, and how much it was asked."""

    def __init__(self, server: Prometheus, tell: Callable[[str], None]) -> None:
        self._server, self._tell = server, tell
        self.queries = self.samples = 0

    @property
    def name(self) -> str:
        """The server's address, without user and password."""
        return self._server.name

    def say(self, what: str) -> None:
        """Tell whoever waits what is being asked for."""
        self._tell(what)

    def at(self, expression: str, moment: float) -> list[Sample]:
        """Answer an expression at a time."""
        found = self._server.query(expression, moment)
        self._count(len(found))
        return found

    def over(self, expression: str, span: Span, step: float | None = None) -> list[Range]:
        """Answer an expression over a span."""
        found = self._server.ranges(expression, span.begin, span.end, step or span.step)
        self._count(sum(len(each.values) for each in found))
        return found

    def _count(self, samples: int) -> None:
        self.queries += 1
        self.samples += samples


@dataclass
class History:
    """One run over a span. Rows are ``ranks``, columns are ``times``."""

    run: Run
    span: Span
    times: Array
    ranks: list[str]
    own: Array
    """Own time of a step in seconds, rank by time."""
    wait: Array
    """Time of a step in exposed communication, alike."""
    reports: Array
    """1 where a rank exports steps, whether or not any ended."""
    phases: dict[str, Array]
    """Mean over the ranks, in seconds of a step."""
    facts: dict[str, Array]
    """Recorded series of the run as a whole, by name."""
    groups: dict[str, str]
    expected: int = 0
    limits: dict[str, float] = field(default_factory=dict[str, float])
    """Thresholds of the run, by name."""
    hosts: dict[str, str] = field(default_factory=dict[str, str])
    information: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """What the run runs on, one for each variant."""
    signals: dict[str, float] = field(default_factory=dict[str, float])
    """Share of the time in which every rank that ended steps measured a signal."""
    started: float = float("nan")
    """When the first process of the run that was seen started, in seconds since 1970; NaN where none says."""
    restarts: list[float] = field(default_factory=list[float])
    """When ranks started once more, in seconds since 1970."""
    places: Array | None = None
    """Index of :data:`PLACES`, rank by time; asked for where a rank or the run stood still."""
    memory: dict[str, Array] = field(default_factory=dict[str, Array])
    """Bytes by kind, rank by time; asked for where memory is what is wrong."""
    capacity: dict[str, float] = field(default_factory=dict[str, float])
    """Bytes that a rank can have, by ``device`` and ``host``."""

    def row(self, rank: str) -> int | None:
        """Return the row of a rank."""
        return self.ranks.index(rank) if rank in self.ranks else None

    def fact(self, name: str) -> Array:
        """Return a recorded series of the run."""
        return self.facts.get(name, np.full(len(self.times), np.nan))

    def columns(self, begin: float, end: float) -> slice:
        """Return the columns of a part of the span, at least one."""
        first = int(np.searchsorted(self.times, begin - 1e-3))
        return slice(min(first, len(self.times) - 1), max(first + 1, int(np.searchsorted(self.times, end + 1e-3))))


def read(server: Counted, run: Run, span: Span) -> History:
    """Return a run over a span."""
    times = span.times
    window = f"[{span.window:.0f}s]"
    own_run, by_rank = run.matcher(), f"max by ({RANK}, {GROUP})"
    own_count = f"rate({prometheus_name(STEP_OWN_DURATION)}_count{own_run}{window})"
    count = f"rate({prometheus_name(STEP_DURATION)}_count{own_run}{window})"
    phase_sum = f"{prometheus_name(PHASE_DURATION)}_sum"

    server.say("own times of the ranks")
    found = server.over(
        f"{by_rank} (rate({prometheus_name(STEP_OWN_DURATION)}_sum{own_run}{window})) / {by_rank} ({own_count})", span
    )
    groups = {each.labels[RANK]: each.labels[GROUP] for each in found if RANK in each.labels and GROUP in each.labels}
    # A rank may report and end no step: then it has no own time.
    reporting = server.over(f"group by ({RANK}) ({own_count})", span)
    ranks = ordered(each.labels[RANK] for each in (*found, *reporting) if each.labels.get(RANK))
    own, reports = (table(series, ranks, times, RANK) for series in (found, reporting))

    server.say("waits of the ranks")
    communication = run.matcher(f'{PHASE}="communication"')
    waits = f"rate({phase_sum}{communication}{window})"
    wait = table(server.over(f"max by ({RANK}) ({waits}) / max by ({RANK}) ({count})", span), ranks, times, RANK)

    server.say("phases and shares of the run")
    found = server.over(
        f"sum by ({PHASE}) (max by ({RANK}, {PHASE}) (rate({phase_sum}{own_run}{window}))) "
        f"/ on () group_left () sum(max by ({RANK}) ({count}))",
        span,
    )
    phases = {each.labels[PHASE]: line(each, times) for each in found if PHASE in each.labels}
    found = server.over('{__name__=~"run:(training|gpu|host)_.+",' + own_run[1:], span)
    # A server may add labels to all series, as Thanos does with tenant_id.
    of_the_run = min((each.labels.keys() for each in found), key=len, default=None)
    facts = {each.labels.get("__name__", ""): line(each, times) for each in found if each.labels.keys() == of_the_run}
    expected = facts.get("run:training_ranks_expected:max", np.full(len(times), np.nan))
    history = History(
        run=run,
        span=span,
        times=times,
        ranks=ranks,
        own=own,
        wait=wait,
        reports=reports,
        phases=phases,
        facts=facts,
        groups=groups,
        expected=int(np.nanmax(expected)) if np.isfinite(expected).any() else 0,
    )
    _read_configuration(server, history)
    return history


def _read_configuration(server: Counted, history: History) -> None:
    """Add what changes seldom: hosts, restarts, what the run runs on, signals and thresholds."""
    server.say("hosts and configuration")
    span, own_run = history.span, history.run.matcher()
    seldom = max(span.step, (span.end - span.begin) / _FEW)
    starts = server.over(f"max by ({RANK}, {HOST}) ({_START}{own_run})", span, seldom)
    information = server.over(
        f"group by ({', '.join(map(prometheus_label, RUN_FACTS))}) ({prometheus_name(RUN_INFO)}{own_run})", span, seldom
    )
    signals = server.over(
        # Before its first step a rank has seen no phase.
        f"min by ({SIGNAL}) (max by ({SIGNAL}, {RANK}) ({prometheus_name(SIGNAL_AVAILABLE)}{own_run}) and on ({RANK}) "
        f"max by ({RANK}) ({prometheus_name(STEPS)}{own_run}) > 0)",
        span,
        seldom,
    )
    limits = server.at(f"last_over_time(run:laggard_threshold:value{own_run}[1h])", span.end)
    history.limits = {sample.labels["name"]: sample.value for sample in limits if "name" in sample.labels}
    history.hosts = _hosts(starts)
    history.information = [each.labels for each in information if each.labels]
    history.signals = {each.labels.get(SIGNAL, ""): fmean(each.values.values()) for each in signals if each.values}
    history.started = min((value for each in starts for value in each.values.values()), default=float("nan"))
    history.restarts = _restarts(starts)


def read_places(server: Counted, history: History) -> None:
    """Add where each rank stood, from the state files."""
    server.say("where the ranks stood")
    own_run = history.run.matcher()

    ended = history.run.matcher('training_state="finished"')
    expression = f" or on ({RANK}) ".join(
        (
            f"(max by ({RANK}) (training_process_state{ended}) == 1) * 0 + 4",
            f"(max by ({RANK}) (training_process_up{own_run}) == 0) * 0 + 3",
            f"(max by ({RANK}) (training_process_stopped{own_run}) == 1) * 0 + 2",
            f"max by ({RANK}) (training_process_in_collective{own_run})",
            f"max by ({RANK}) (training_process_up{own_run}) * 0",
        )
    )
    found = server.over(expression, history.span)
    # A rank whose own metrics never came may have a state file.
    named = ordered(series.labels[RANK] for series in found if series.labels.get(RANK))
    added = [rank for rank in named if rank not in history.ranks]
    if added:
        history.ranks += added
        missing = np.full((len(added), len(history.times)), np.nan)
        history.own, history.wait, history.reports = (
            np.vstack((values, missing)) for values in (history.own, history.wait, history.reports)
        )
    if found:
        history.places = table(found, history.ranks, history.times, RANK)


def read_memory(server: Counted, history: History, kinds: Iterable[str]) -> None:
    """Add the memory of each rank, of some kinds."""
    server.say("memory of the ranks")
    name = prometheus_name(MEMORY_USAGE)
    for kind in sorted(set(kinds)):
        own_kind = history.run.matcher(f'{KIND}="{kind}"')
        found = server.over(f"max by ({RANK}) ({name}{own_kind})", history.span)
        if found:
            history.memory[kind] = table(found, history.ranks, history.times, RANK)
    limits = f"min by ({KIND}) (last_over_time(training_memory_limit_bytes{history.run.matcher()}[10m]))"
    history.capacity = {sample.labels.get(KIND, ""): sample.value for sample in server.at(limits, history.span.end)}


def ordered(ranks: Iterable[str]) -> list[str]:
    """Return names of ranks in the order of their numbers, each once."""

    def place(rank: str) -> tuple[bool, int, str]:
        found = number(rank)
        return found is None, found or 0, rank

    return sorted(set(ranks), key=place)


def number(rank: str) -> int | None:
    """Return the number that the label of a rank is; None for any other text."""
    return int(rank) if rank.isdecimal() and len(rank) <= _DIGITS else None


def line(series: Range, times: Array) -> Array:
    """Return a series at the times; NaN where it has no value."""
    row = np.full(len(times), np.nan)
    if series.values:
        step = times[1] - times[0] if len(times) > 1 else 1.0
        places = np.rint((np.fromiter(series.values, float) - times[0]) / step).astype(int)
        inside = (places >= 0) & (places < len(times))
        row[places[inside]] = np.fromiter(series.values.values(), float)[inside]
    return np.where(np.isfinite(row), row, np.nan)


def table(found: Iterable[Range], rows: list[str], times: Array, label: str) -> Array:
    """Return series by the value of a label and time; of two in one place the later one counts."""
    made = np.full((len(rows), len(times)), np.nan)
    index = {row: number for number, row in enumerate(rows)}
    for series in found:
        row = line(series, times)
        number = index.get(series.labels.get(label, ""))
        if number is not None:
            made[number] = np.where(np.isfinite(row), row, made[number])
    return made


def _restarts(starts: Iterable[Range]) -> list[float]:
    """Return when ranks started that had started before; starts within a minute of each other are one."""
    of_rank: dict[str, set[float]] = {}
    for each in starts:
        of_rank.setdefault(each.labels.get(RANK, ""), set()).update(each.values.values())
    made: list[float] = []
    for moment in sorted(later for found in of_rank.values() for later in sorted(found)[1:]):
        if not made or moment - made[-1] > 60:  # noqa: PLR2004 - a minute
            made.append(moment)
    return made


def _hosts(starts: Iterable[Range]) -> dict[str, str]:
    """Return the host of each rank: where its newest process started."""
    newest: dict[str, tuple[float, str]] = {}
    for each in starts:
        rank, host = each.labels.get(RANK, ""), each.labels.get(HOST, "")
        started = max(each.values.values())
        if host and started >= newest.get(rank, (0.0, ""))[0]:
            newest[rank] = started, host
    return {rank: host for rank, (_, host) in newest.items()}
