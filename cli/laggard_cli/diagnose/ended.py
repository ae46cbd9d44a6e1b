"""A run of which nothing lives: when and how it ended, and which commands show it."""

from __future__ import annotations

import math
import shlex
import time
from dataclasses import dataclass
from datetime import datetime, timezone

from laggard_cli.clusters import CLUSTER, RUN, Run, run_of
from laggard_cli.past.times import iso
from laggard_cli.prometheus import Prometheus, quoted

#: How far back a run is looked for, and in which steps first.
_REACH_SECONDS, _STEP_SECONDS = 30 * 86400, 300
#: By a signal with which a person, a launcher or a scheduler asks for it, as a failure's label has it.
_ON_REQUEST = "request"


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    at: str
    """Time of its last sign of life, in UTC."""
    how: str
    """``finished`` where each rank ended cleanly, ``partly`` where some did, ``failed``, ``request`` or ``unknown``."""
    finished: int
    """Ranks that ended cleanly."""
    expected: int | None
    """Ranks that it had; None where nobody knows."""
    signal: str = ""
    """By which it was asked to end."""

    def said(self, ago: str) -> str:
        """Return it as a sentence; ``ago`` is the time as a person reads it."""
        ranks = f"{self.finished}" if self.expected is None else f"{self.finished} of {self.expected}"
        how = {
            "finished": f"{ranks} ranks ended cleanly",
            "partly": f"{ranks} ranks ended cleanly, the others without a word",
            "failed": f"it failed, {ranks} ranks ended cleanly" if self.finished else "it failed",
            _ON_REQUEST: f"{self.signal} asked it to end",
        }.get(self.how, "no rank reported how; a rank that is killed cannot")
        return f"ended {ago}: {how}"


def ended(prometheus: Prometheus, name: str, cluster: str | None) -> list[tuple[Run, Ended]]:
    """Return the runs of a name that lived in the last 30 days, each with its end; nothing where there was none."""
    own = f"{RUN}={quoted(name)}" + ("" if cluster is None else f",{CLUSTER}={quoted(cluster)}")
    known = prometheus.query(
        f"max by (cluster, training_run) (last_over_time(run:training_ranks_expected:max{{{own}}}[30d]))", by=(RUN,)
    )
    found: list[tuple[Run, Ended]] = []
    for sample in known:
        run = run_of(sample)
        last = _last(prometheus, run)
        if last is not None:
            found.append((run, _how(prometheus, run, last, round(sample.value))))
    return found


def commands(prometheus: Prometheus, run: Run, at: float) -> tuple[str, ...]:
    """Return what to type to see a run as it was at its end, and all of it."""
    where = prometheus.arguments + (f" --cluster {shlex.quote(run.cluster)}" if run.cluster else "")
    then = datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = shlex.quote(run.name)
    return (f"laggard diagnose{where} --run {name} --at {then}", f"laggard report{where} --run {name}")


def _last(prometheus: Prometheus, run: Run) -> float | None:
    """Return when a run last had a rank that lived."""
    live = f"run:training_ranks_live:count{run.matcher()}"
    end = time.time()
    for reach, step in ((_REACH_SECONDS, _STEP_SECONDS), (_STEP_SECONDS, 1)):
        end = math.ceil(end / step) * step
        begin = end - reach
        series = prometheus.ranges(f"max(present_over_time({live}[{step}s]))", begin, end, step)
        moments = [moment for each in series for moment in each.values]
        if not moments:
            return None
        end = max(moments)
    return end


def _how(prometheus: Prometheus, run: Run, last: float, expected: int) -> Ended:
    # What the rules recorded, and what they have not recorded yet of a run that has just ended.
    finished = prometheus.query(
        "count(group by (cluster, training_run, training_rank) ("
        f"last_over_time(run_rank:training_finished:last{run.matcher()}[30d])"
        f""" or last_over_time(training_process_state{run.matcher('training_state="finished"')}[1h]) == 1))"""
    )
    count = round(finished[0].value) if finished else 0
    # An earlier start may have failed, and of the last one nothing be left to tell.
    failures = prometheus.query(
        f"last_over_time(run_rank:training_failure_timestamp_seconds:first{run.matcher()}[30d])"
        " >= on (cluster, training_run) group_left ()"
        f" last_over_time(run:training_process_start_timestamp_seconds:min{run.matcher()}[30d])"
    )
    signal = ""
    if failures:
        labels = max(failures, key=lambda failure: failure.value).labels
        how = _ON_REQUEST if labels.get("training_ended_by") == _ON_REQUEST else "failed"
        signal = labels.get("training_ended_with", "")
    elif not count:
        how = "unknown"
    else:
        how = "finished" if count >= expected else "partly"
    return Ended(iso(last), how, count, expected or None, signal)
