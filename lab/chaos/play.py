"""Plays one fault on one job: starts it, breaks it, and holds the alerts against what was broken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.chaos.breakages import BREAKAGES
from lab.chaos.faults import HANG_ALERTS, PROCESS_SECONDS, STALL_MARGIN_SECONDS, Fault
from lab.chaos.job import Job
from lab.chaos.memory import OUT_OF_MEMORY, MemoryLimit
from lab.chaos.network import LINK, Link, UnsupportedError
from lab.chaos.outside import OUTSIDE
from lab.chaos.stack import Stack
from laggard_cli.diagnose.gather import firing
from laggard_cli.diagnose.model import Verdict
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus

_POLL_SECONDS = 0.5
#: The ranks' start, and enough steps for a usual one.
_START_SECONDS = 150.0
#: A verdict must stand alone for so long: two evaluations and what they need.
_HOLD_SECONDS = 12.0
_BREAK_SECONDS = 15.0
#: Of a stall once a run is in full swing: ten of the longest steps that a case has.
_HIGHEST_LIMIT = 35
#: So much longer is watched, so that what comes late is told with its time.
_LATE_SECONDS = 20.0


@dataclass(frozen=True)
class Case:
    """A fault, the size of the job, and who is to blame."""

    fault: Fault
    world: int
    culprit: int

    @property
    def name(self) -> str:
        """Name of the case and of its run."""
        return f"{self.fault.name}-{self.culprit}of{self.world}"


@dataclass
class Result:
    """How a case went."""

    case: Case
    #: From the fault to the alert that is right; None without.
    seconds: float | None = None
    limit: float | None = None
    #: Alerts that are right, as ``alert rank``.
    right: list[str] = field(default_factory=list[str])
    #: Alerts that name somebody else, or fired where nothing is wrong.
    wrong: list[str] = field(default_factory=list[str])
    #: Why the case could not be played.
    problem: str = ""
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """Whether all that was promised came true."""
        if self.problem or self.wrong:
            return False
        return bool(self.skipped) or self.limit is None or (self.seconds is not None and self.seconds <= self.limit)

    def note(self, verdict: Verdict, seconds: float) -> None:
        """Take down an alert about the run that fired so many seconds after the fault."""
        fault = self.case.fault
        said = f"{verdict.alert} {f'rank {verdict.rank}' if verdict.rank else 'run'} {verdict.phase}".strip()
        expected = str(self.case.culprit) if fault.culprit else ""
        if fault.silent is not None or verdict.rank != expected:
            known = self.wrong
        else:
            known = self.right
            if verdict.alert in fault.alerts and self.seconds is None:
                self.seconds = seconds
        if said not in known:
            known.append(said)


class Play:
    """Plays cases on a stack, several at once."""

    def __init__(self, stack: Stack, show: Callable[[str], None]) -> None:
        self._stack = stack
        self._show = show
        self._prometheus = Prometheus(stack.servers.addresses["prometheus"])

    def play(self, case: Case) -> Result:
        """Play a case; whatever goes wrong stands in its result."""
        result = Result(case)
        try:
            self._play(case, result)
        except UnsupportedError as error:
            result.skipped = str(error)
        except (CommandError, OSError) as error:
            result.problem = str(error)
        self._show(line(result))
        return result

    def close(self) -> None:
        """End the connections."""
        self._prometheus.close()

    def _play(self, case: Case, result: Result) -> None:
        fault, servers = case.fault, self._stack.servers
        link_reason = Link.missing() if fault.act in LINK else ""
        result.skipped = link_reason or (MemoryLimit.missing() if fault.act == OUT_OF_MEMORY else "")
        if result.skipped:
            return
        with contextlib.ExitStack() as cleanup:
            ports = cleanup.enter_context(self._stack.place())
            link = cleanup.enter_context(Link(case.world)) if fault.act in LINK else None
            limited = cleanup.enter_context(MemoryLimit(case.name)) if fault.act == OUT_OF_MEMORY else None
            more = {**(link.environment if link else {}), **(limited.environment if limited else {})}
            job = cleanup.enter_context(
                Job(
                    servers.folder / case.name,
                    case.name,
                    case.world,
                    ports,
                    servers.state_directories,
                    environment={**_inside(case), **more},
                    flags=fault.flags,
                    prefix=link.prefix if link else (),
                )
            )
            self._wait_for_start(job)
            limit = self._limit(case)
            if fault.silent is not None:
                self._watch(case, result, self._break(job, case, link), fault.silent)
                return
            result.limit = PROCESS_SECONDS if fault.process else limit + STALL_MARGIN_SECONDS
            self._watch(case, result, self._break(job, case, link), result.limit + _LATE_SECONDS)

    def _wait_for_start(self, job: Job) -> None:
        """Wait until all ranks run, and the rules know them and the run's usual step."""
        live = f'count(run_rank:training_rank_live:info{{training_run="{job.run}",training_state="running"}})'
        # A run whose usual step is not known yet has the limit of a start, or of its first steps.
        known = (
            f'run:training_stall_limit_seconds:max{{training_run="{job.run}"}} <= {_HIGHEST_LIMIT}'
            f" and on (training_run) count by (training_run) (run_rank_host:training_roster:info) == {job.world}"
        )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            for rank, process in enumerate(job.processes):
                if process.poll() is not None:
                    raise CommandError(f"rank {rank} ended before its fault: {job.log(rank)[-2000:]}")
            counted = self._prometheus.query(live)
            if counted and counted[0].value == job.world and self._prometheus.query(known):
                return
            self._stack.pause(_POLL_SECONDS)
        raise CommandError(f"the job did not start within {_START_SECONDS:.0f} s; log of rank 0: {job.log(0)[-2000:]}")

    def _limit(self, case: Case) -> float:
        """Return how long the run may show no progress, in seconds, as the rules say."""
        if case.fault.act in ("checkpoint-storage", "evaluation-sleep"):
            name = 'laggard_threshold{name="stall_pause_seconds"}'
        else:
            name = f'run:training_stall_limit_seconds:max{{training_run="{case.name}"}}'
        return self._prometheus.query(name)[0].value

    def _break(self, job: Job, case: Case, link: Link | None) -> float:
        """Break the job; return the time at which it broke."""
        act = case.fault.act
        if link is not None:
            LINK[act](link)
            return time.time()
        if act in OUTSIDE:
            began = time.time()
            OUTSIDE[act](job, case.culprit)
            return began
        if not act:
            return time.time()
        (job.folder / "break").touch()
        broken = job.folder / "broken"
        deadline = time.monotonic() + _BREAK_SECONDS
        while time.monotonic() < deadline:
            if broken.exists() and (text := broken.read_text()):
                return float(text)
            self._stack.pause(0.1)
        raise CommandError(f"the fault did not happen within {_BREAK_SECONDS:.0f} s; is its place ever reached?")

    def _watch(self, case: Case, result: Result, broke: float, seconds: float) -> None:
        while (elapsed := time.time() - broke) < seconds:
            for verdict in firing(self._prometheus):
                if verdict.run == case.name and verdict.alert in (*HANG_ALERTS, *case.fault.alerts):
                    result.note(verdict, elapsed)
            if result.seconds is not None and elapsed > result.seconds + _HOLD_SECONDS:
                return
            self._stack.pause(_POLL_SECONDS)


def _inside(case: Case) -> dict[str, str]:
    """Return what tells the ranks to break themselves."""
    culprit = "all" if case.fault.all_ranks else str(case.culprit)
    return {"CHAOS_BREAKAGE": case.fault.act, "CHAOS_CULPRIT": culprit} if case.fault.act in BREAKAGES else {}


def line(result: Result) -> str:
    """Return a case's result as a line."""
    case = result.case
    if result.problem or result.skipped:
        said = result.problem or f"skipped: {result.skipped}"
    elif case.fault.silent is not None:
        said = "silent" if not result.wrong else ""
    elif result.seconds is None:
        said = f"not found within {result.limit:.0f} s"
    else:
        said = f"{result.seconds:.0f} s of {result.limit:.0f} s: {', '.join(result.right)}"
    wrong = f" WRONG: {', '.join(result.wrong)}" if result.wrong else ""
    return f"{'ok  ' if result.passed else 'FAIL'} {case.name}: {said}{wrong}"
