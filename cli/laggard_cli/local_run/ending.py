"""What becomes known of a local run when its job has ended: how it went, and the page about it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from laggard_cli.clusters import RUN, Run
from laggard_cli.diagnose.gather import diagnose
from laggard_cli.diagnose.model import Diagnosis, Failure, Verdict
from laggard_cli.errors import CommandError
from laggard_cli.local_run.card import Card, Measured, measured, seen
from laggard_cli.local_run.judgement import why_no_verdict
from laggard_cli.local_run.plan import Plan
from laggard_cli.local_run.verdicts import Said
from laggard_cli.local_run.watchers import Watchers
from laggard_cli.local_servers.processes import how_it_ended
from laggard_cli.prometheus import Prometheus, quoted
from laggard_cli.report.command import gather
from laggard_cli.report.history import RANK, Counted
from laggard_cli.report.page import Report, page
from laggard_cli.report.span import find

#: A page about less than this shows nothing.
_REPORT_SECONDS = 30.0
#: By these somebody ended the job, and nobody wonders which rank was first.
_ON_REQUEST = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
#: A failure is known after a scrape and an evaluation; a job that failed is not to be waited for longer.
_FAILURE_INTERVALS = 1.5
_POLL_SECONDS = 0.5
#: Before the end of a job, of which the last that compared its ranks counts.
_EVALUATIONS = 6
_COMPARED = "run_rank:training_step_own_seconds:compared"


class Ending:
    """Gathers the card, step by step: what one step does not get, the others do without.

    Args:
        plan: of the run.
        began: when the job began, in seconds since 1970.
        ended: when it ended.
        status: how, as waitpid has it; None where nobody knows.
    """

    def __init__(self, plan: Plan, began: float, ended: float, status: int | None) -> None:
        self._plan = plan
        self._began, self._ended = began, ended
        self._status = status
        self._ranks, self._steps = seen(plan.place.state_directory, plan.run)
        self._measured = Measured()
        self._diagnosis: Diagnosis | None = None
        self._failure: Failure | None = None
        self._compared = 0.0
        self._needed = math.inf
        self._told: Report | None = None
        self._report: Path | None = None

    def ask(self, prometheus: Prometheus, servers: Watchers) -> None:
        """Ask Prometheus for what the card needs. Raises :class:`CommandError`."""
        run, at, seconds = self._plan.run, self._ended, self._ended - self._began
        self._needed = servers.verdict_seconds
        if self._wants_failure():
            self._failure = self._wait_for_failure(prometheus, _FAILURE_INTERVALS * servers.interval)
        self._measured = measured(prometheus, run, at, seconds)
        # Ranks finish before their job ends, and of a finished run the rules know nothing any more.
        for back in range(_EVALUATIONS):
            try:
                found = _of_run(diagnose(prometheus, None, at - back * servers.interval), run)
            except CommandError:
                if not back:
                    raise
                break  # the rules had not been evaluated by then
            self._diagnosis = self._diagnosis or found
            if found is not None and found.ranks:
                self._diagnosis = found
                break
        counted = prometheus.query(
            f"max(count_over_time({_COMPARED}{{{RUN}={quoted(run)}}}[{math.ceil(seconds)}s]))", at
        )
        self._compared = counted[0].value * servers.interval if counted else 0.0

    def write_report(self, prometheus: Prometheus) -> None:
        """Write the page where there is something to show. Raises :class:`CommandError` and :class:`OSError`."""
        if self._diagnosis is None or self._ended - self._began < _REPORT_SECONDS:
            return
        name = Run("", self._plan.run)
        span = find(prometheus, name, None, None, None)
        self._told = gather(Counted(prometheus, lambda _: None), prometheus, name, span)
        path = self._plan.place.report
        try:
            path.write_text(page(self._told), encoding="utf-8", errors="replace")
        except OSError:
            path.unlink(missing_ok=True)  # half a page is none
            raise
        self._report = path

    def card(self, verdicts: Sequence[Said], blind: str) -> Card:
        """Return the card; the servers have ended, so that what they took is known.

        Args:
            verdicts: that the run had.
            blind: why there were none at its end; empty where there could be.
        """
        return Card(
            run=self._plan.run,
            ended="exit code unknown, as laggard was killed," if self._status is None else _how(self._status),
            seconds=self._ended - self._began,
            ranks_seen=self._ranks,
            steps=self._steps,
            measured=self._measured,
            verdicts=tuple(verdicts),
            judgement=self._judgement(verdicts, blind),
            failure=self._failure,
            costs=tuple(self._cost(said.verdict) for said in verdicts),
            processor_seconds=sum(os.times()[:4]),
            report=self._report,
            folder=self._plan.place.servers if self._plan.keep else None,
        )

    def _judgement(self, verdicts: Sequence[Said], blind: str) -> str:
        if blind:
            return f"not judged{' to the end' if verdicts else ''}: {blind}"
        return "" if verdicts else why_no_verdict(self._diagnosis, self._ranks, self._compared, self._needed)

    def _wants_failure(self) -> bool:
        # Where there is one process, it has said itself why it failed.
        if not self._status or self._ranks < 2:  # noqa: PLR2004 - there is a first of two
            return False
        code = os.waitstatus_to_exitcode(self._status)
        return -code not in _ON_REQUEST and code - 128 not in _ON_REQUEST

    def _wait_for_failure(self, prometheus: Prometheus, seconds: float) -> Failure | None:
        deadline = time.monotonic() + seconds
        while True:
            found = _of_run(diagnose(prometheus, None), self._plan.run)
            if found is not None and found.failure is not None:
                return found.failure
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_SECONDS)

    def _cost(self, verdict: Verdict) -> str:
        for told in self._told.told if self._told is not None else ():
            ranks = told.problem.members(RANK)
            if told.cost is not None and told.problem.alert == verdict.alert and (not ranks or verdict.rank in ranks):
                return f"{told.cost.rank_hours:.3g} rank-hours: {told.cost.arithmetic}"
        return ""


def _of_run(diagnoses: Sequence[Diagnosis], run: str) -> Diagnosis | None:
    return next((found for found in diagnoses if found.run == run), None)


def _how(status: int) -> str:
    return how_it_ended(os.waitstatus_to_exitcode(status)).removeprefix("with ")
