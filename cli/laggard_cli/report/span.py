"""Which time of a run a report is about."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from laggard_cli.clusters import RUN, Run, run_of
from laggard_cli.errors import CommandError
from laggard_cli.nearby import did_you_mean, listed
from laggard_cli.past.times import NOT_KEPT, iso
from laggard_cli.prometheus import Prometheus
from laggard_cli.report.arrays import Array

#: A series that each run has.
EXPECTED = "run:training_ranks_expected:max"
#: How far back a run is looked for, and in which steps: a server gives at most 11,000 points. A coarse step is this
#: many fine ones.
_REACH_SECONDS, _FINE_STEPS, _MOST_POINTS = 30 * 86400.0, 300, 10_000
#: How long evaluations are watched to tell how often they happen, and how often that usually is.
_WATCHED_SECONDS, _USUAL_INTERVAL = 180.0, 15.0
#: Columns of the pictures; of a run with very many ranks fewer, so that an answer stays below some ten megabytes.
_COLUMNS, _FEWEST_COLUMNS, _POINTS = 240, 60, 150_000
#: A rate needs some scrapes, and a mean some steps.
_SCRAPES, _STEPS = 4, 8


@dataclass(frozen=True)
class Span:
    """A time in seconds since 1970, and how it is cut: a value each ``step`` seconds, means over ``window``."""

    begin: float
    end: float
    step: float
    window: float

    @property
    def times(self) -> Array:
        """The moments at which values are asked for."""
        count = math.floor((self.end - self.begin) / self.step + 1e-6) + 1
        return np.array([self.begin + self.step * number for number in range(count)])


def seconds_back(begin: float | None, end: float | None) -> tuple[float, float]:
    """Return how many seconds are looked at, and until when, in seconds since 1970."""
    now = time.time()
    until = min(now if end is None else end, now)
    return _REACH_SECONDS if begin is None else until - begin, until


def find(server: Prometheus, run: Run, begin: float | None, end: float | None, last: float | None) -> Span:
    """Return the time of a report on a run.

    Args:
        server: that has the run.
        run: its name.
        begin: seconds since 1970; without it the run's own start.
        end: the same; without it the run's own end, or now.
        last: seconds before the end, instead of ``begin``.

    Raises:
        CommandError: there is no such run, or it was not there in that time.
    """
    reach, until = seconds_back(begin, end)
    since = until - reach
    if since >= until:
        raise CommandError(f"--from {iso(since)} is not before --to {iso(until)}: the range is empty")
    seen = _lived(server, run, since, until)
    if seen is None:
        raise CommandError(_absent(server, run, since, until))
    # Before the run and after it there is nothing to show.
    until = min(until, seen[1])
    since = max(seen[0], until - last if last is not None else seen[0])
    if until <= since:
        raise CommandError(f"run {str(run)!r} was seen at {iso(until)} only; a report needs some minutes of it")
    interval = _interval(server, until)
    length = f"{run.matcher()}[{math.ceil(until - since)}s]"
    ranks = _value(server, f"max(max_over_time(run:training_ranks_expected:max{length}))", until)
    columns = min(_COLUMNS, max(_FEWEST_COLUMNS, _POINTS / (ranks or 1)))
    step = math.ceil((until - since) / columns / interval) * interval
    usual = _value(
        server,
        f"quantile_over_time(0.5, run:training_step_seconds:mean{length}) "
        f"or quantile_over_time(0.5, run:training_step_seconds:estimate{length})",
        until,
    )
    window = math.ceil(max(_SCRAPES * interval, step, _STEPS * (usual or 0.0)) / interval) * interval
    # The last value is of the last moment: a verdict that has just begun is in it.
    return Span(until - math.ceil((until - since) / step) * step, until, float(step), float(window))


def _lived(server: Prometheus, run: Run, since: float, until: float) -> tuple[float, float] | None:
    """Return the first and the last time at which a run was there, or nothing if it was not."""
    expected = f"run:training_ranks_expected:max{run.matcher()}"

    def times(begin: float, end: float, each: float) -> list[float]:
        """Return the moments with a sample in the time ``each`` before them."""
        found = server.ranges(f"max(present_over_time({expected}[{math.ceil(each)}s]))", begin, end, each)
        return sorted(moment for series in found for moment in series.values)

    fine = math.ceil((until - since) / _MOST_POINTS / _FINE_STEPS)
    coarse = fine * _FINE_STEPS
    found = times(since // coarse * coarse, math.ceil(until / coarse) * coarse, coarse)
    if not found:
        return None
    first, last = (times(edge - coarse + fine, edge, fine) for edge in (found[0], found[-1]))
    if not first or not last or last[-1] < since or first[0] > until:
        return None
    # A run that is there now has its next sample a little later.
    return max(since, first[0] - fine), last[-1] + fine


def _absent(server: Prometheus, run: Run, since: float, until: float) -> str:
    length = f"[{math.ceil(until - since)}s]"
    known = server.query(
        f"group by (cluster, training_run) (last_over_time(run:training_ranks_expected:max{length}))", until
    )
    runs = [run_of(sample) for sample in known if sample.labels.get(RUN)]
    if runs:
        there = f"runs there: {listed(map(str, runs))}{did_you_mean(run.name, {each.name for each in runs})}"
    elif server.query(f"last_over_time(laggard_rules_info{length})", until):
        there = "there is no run at that time"
    else:
        there = f"no series laggard_rules_info: {NOT_KEPT}"
    return f"--run {run.name!r} is not in Prometheus at {server.name} from {iso(since)} to {iso(until)}; {there}"


def _interval(server: Prometheus, at: float) -> float:
    """Return how often the rules are evaluated, which is how often ranks are scraped, in whole seconds."""
    found = server.ranges("max(timestamp(laggard_rules_info))", at - _WATCHED_SECONDS, at, 1)
    evaluated = sorted(
        {value for series in found for value in series.values.values() if abs(at - value) <= 2 * _WATCHED_SECONDS}
    )
    if len(evaluated) < 3:  # noqa: PLR2004 - too few to tell
        return _USUAL_INTERVAL
    return float(max(1, round(float(np.median(np.diff(evaluated))))))


def _value(server: Prometheus, expression: str, at: float) -> float | None:
    """Return the one value of an expression, if it has one."""
    return next((sample.value for sample in server.query(expression, at)), None)
