"""A run from Prometheus: means over intervals, from the sums and counts of the ranks' own histograms."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np

from laggard.shared.attributes import Attribute
from laggard.shared.metrics import MEMORY_USAGE, PHASE_DURATION, RANKS_EXPECTED, SAMPLES, STEP_DURATION, STEPS, TOKENS
from laggard.shared.names import prometheus_label, prometheus_name
from laggard.shared.phases import Phase
from laggard_cli.clusters import CLUSTER, Run, find_run
from laggard_cli.errors import CommandError
from laggard_cli.gate.measured import PAUSES, Array, Measured
from laggard_cli.nearby import did_you_mean, listed
from laggard_cli.past.times import parse_moment
from laggard_cli.prometheus import Prometheus

#: How a run of Prometheus is given.
FORM = "run:NAME or run:NAME@FROM/TO"
_SOURCE = re.compile(r"run:(?P<name>.+?)(?:@(?P<begin>[^@/]+)/(?P<end>[^@/]*))?")
_DEFAULT_SECONDS = 86400.0
#: A query gives at most 11,000 points; of a long run intervals get longer.
_MAX_INTERVALS = 5000
_RUN, _RANK = prometheus_label(Attribute.RUN), prometheus_label(Attribute.RANK)
_PHASE, _KIND = prometheus_label(Attribute.PHASE), prometheus_label(Attribute.MEMORY_KIND)
_PHASES = {phase.label for phase in Phase}


@dataclass(frozen=True)
class Span:
    """A run in Prometheus and the time that is looked at, in seconds since 1970."""

    source: str
    run: str
    begin: float
    end: float
    cluster: str = ""

    def matcher(self) -> str:
        """Return the matchers of the run's series."""
        return Run(self.cluster, self.run).matcher()

    def __str__(self) -> str:
        """Return the run and the time, as an error names them."""
        begin, end = (
            datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")
            for moment in (self.begin, self.end)
        )
        return f"{self.run!r} from {begin} to {end}"


def is_span(source: str) -> bool:
    """Return whether what is given names a run of Prometheus."""
    return source.startswith("run:")


def parse(source: str) -> Span:
    """Return what ``run:NAME`` or ``run:NAME@FROM/TO`` means; without a time the last day.

    Raises:
        CommandError: it is neither, or the time ends before it begins.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise CommandError(f"{source!r} is not {FORM}")
    now = time.time()
    end = _moment(source, match["end"]) if match["end"] else now
    begin = _moment(source, match["begin"]) if match["begin"] else end - _DEFAULT_SECONDS
    if begin >= end:
        raise CommandError(f"{source!r}: the range is empty, it ends before it begins")
    return Span(source, match["name"], begin, min(end, now))


def _moment(source: str, text: str) -> float:
    try:
        return parse_moment(text)
    except ValueError:
        example = "run:pretrain-7@2026-01-31T08:00:00Z/2026-01-31T09:00:00Z"
        raise CommandError(f"{source!r} must have times, got {text!r}; try {example}") from None


def read_span(server: Prometheus, span: Span, interval: float, cluster: str | None = None) -> Measured:
    """Return a run.

    Args:
        server: that has the ranks' series.
        span: which run, and when.
        interval: seconds over which means are taken; at least twice the time between two scrapes.
        cluster: of the run, where several have one of that name.

    Raises:
        CommandError: the server does not answer, the run is not there, or its number of ranks changed.
    """
    seconds = math.ceil(span.end - span.begin)
    found = find_run(server, span.run, cluster, prometheus_name(STEPS), seconds=seconds, at=span.end)
    span = replace(span, cluster=found.cluster)
    length = max(interval, math.ceil((span.end - span.begin) / _MAX_INTERVALS / interval) * interval)
    ranks = _ranks(server, span)
    run = span.matcher() + f"[{length:.0f}s]"

    def values(expression: str) -> dict[str, dict[float, float]]:
        begin = min(span.begin + length, span.end)
        found = server.ranges(expression, begin, span.end, length)
        return {series.labels.get(_PHASE, ""): series.values for series in found}

    counts = f"sum(max by ({_RANK}) (rate({prometheus_name(STEP_DURATION)}_count{run})))"
    step = _only(values(f"sum(max by ({_RANK}) (rate({prometheus_name(STEP_DURATION)}_sum{run}))) / {counts}"))
    # The first and the last interval are in part before the run and after it.
    times = [moment for moment in sorted(step) if math.isfinite(step[moment]) and step[moment] > 0][1:-1]
    by_rank = f"max by ({_RANK}, {_PHASE}) (rate({prometheus_name(PHASE_DURATION)}_sum{run}))"
    by_phase = f"sum by ({_PHASE}) ({by_rank}) / on () group_left () {counts}"
    phases = {name: _series(found, times) for name, found in values(by_phase).items() if name in _PHASES}
    rates = {
        counted: _only(values(f"{over}(max by ({_RANK}) (rate({prometheus_name(metric)}{run})))"))
        for counted, over, metric in (("steps", "avg", STEPS), ("samples", "sum", SAMPLES), ("tokens", "sum", TOKENS))
    }
    # An interval in which the run stood still has no step, and no time for one.
    moving = [moment for moment in times if rates["steps"].get(moment, 0) > 0]
    if not moving:
        raise CommandError(
            f"{span.source}: no whole interval of {length:.0f} s with steps of run {span}; take a longer range, or a "
            "shorter --interval"
        )
    kept = np.isin(times, moving)
    phases = {name: series[kept] for name, series in phases.items() if series[kept].any()}
    throughput: dict[str, Array] = {}
    for counted, rate in rates.items():
        if all(rate.get(moment, 0) > 0 for moment in moving):
            throughput[counted] = 1 / _series(rate, moving)
    whole = _series(step, moving)
    pauses = sum((phases[name] for name in PAUSES if name in phases), np.zeros(len(moving)))
    return Measured(span.source, span.run, ranks, "interval", whole - pauses, phases, throughput, _memory(server, span))


def _ranks(server: Prometheus, span: Span) -> int:
    """Return the number of ranks of a run, all of which must have been there."""
    seconds = f"[{math.ceil(span.end - span.begin)}s]"
    own = span.matcher() + seconds
    seen = server.query(f"count(group by ({_RANK}) (last_over_time({prometheus_name(STEPS)}{own})))", span.end)
    if not seen:
        known = server.query(
            f"group by (cluster, {_RUN}) (last_over_time({prometheus_name(STEPS)}{seconds}))", span.end
        )
        names = sorted({str(Run(each.labels.get(CLUSTER, ""), each.labels.get(_RUN, ""))) for each in known})
        there = f"runs there: {listed(names)}" if names else "there is no run at that time"
        there += did_you_mean(span.run, names)
        raise CommandError(f"{span.source}: Prometheus at {server.name} has no steps of run {span}; {there}")
    expected = {
        sample.value
        for word in ("min", "max")
        for sample in server.query(f"{word}({word}_over_time({prometheus_name(RANKS_EXPECTED)}{own}))", span.end)
    }
    if len(expected) > 1:
        sizes = " to ".join(f"{size:.0f}" for size in sorted(expected))
        raise CommandError(f"{span.source}: run {span} had {sizes} ranks; give a range in which the number is the same")
    ranks = int(seen[0].value)
    if expected and ranks not in expected:
        raise CommandError(f"{span.source}: Prometheus has {ranks} of the {expected.pop():.0f} ranks of run {span}")
    return ranks


def _memory(server: Prometheus, span: Span) -> dict[str, float]:
    own = f"{prometheus_name(MEMORY_USAGE)}{span.matcher()}[{math.ceil(span.end - span.begin)}s]"
    found = server.query(f"max by ({_KIND}) (max_over_time({own}))", span.end)
    return {sample.labels[_KIND]: sample.value for sample in found if _KIND in sample.labels}


def _only(found: dict[str, dict[float, float]]) -> dict[float, float]:
    return next(iter(found.values()), dict[float, float]())


def _series(values: dict[float, float], times: list[float]) -> Array:
    """Return values at the times; a phase that is not there took no time."""
    array: Array = np.array([values.get(moment, 0.0) for moment in times], dtype=np.float64)
    return np.where(np.isfinite(array), np.maximum(array, 0.0), 0.0)
