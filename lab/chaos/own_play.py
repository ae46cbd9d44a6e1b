"""Plays a fault of laggard on a job of its own, and compares with a job that laggard does not watch."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.chaos.job import PROGRAM, TIMED_PROGRAM, Job
from lab.chaos.outages import OUTAGES
from lab.chaos.own import OwnFault
from lab.chaos.own_acts import ACTS, WORLD, Act, Scene
from lab.chaos.stack import Stack
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus

_START_SECONDS = 60.0
#: From when something broke to the end of the process.
_RUN_SECONDS = 240.0
_COUNT_SECONDS = 20.0
#: What one call of laggard's may take on a thread that trains.
_CALL_SECONDS = 0.010
#: The share of the steps that ``LAGGARD_BUDGET`` has by default.
_BUDGET = 0.005


@dataclass(frozen=True)
class Cost:
    """What laggard took of a job, by the stopwatch of :mod:`lab.chaos.timed`: of all ranks the one that lost most."""

    #: The longest call on the thread that trains, in seconds, and the function that it was of.
    longest: float
    where: str
    #: All calls on that thread, and the processor's time of the drain, as shares of the training.
    calls: float
    drain: float

    @classmethod
    def of(cls, folder: Path) -> Cost:
        """Return what the ranks of a folder wrote."""
        found = [json.loads((folder / f"calls{rank}").read_text()) for rank in range(WORLD)]
        longest = max(found, key=lambda each: each["longest"])
        calls, drain = (max(each[what] / each["training"] for each in found) for what in ("calls", "drain"))
        return cls(longest["longest"], longest["where"], calls, drain)

    def __str__(self) -> str:
        return f"longest call {self.longest * 1e3:.1f} ms, calls {self.calls:.2%}, drain {self.drain:.2%}"

    def problems(self) -> list[str]:
        """Return what of it is more than is promised."""
        problems = [f"{self.where} held training up for {self.longest * 1e3:.1f} ms"]
        problems = problems if self.longest > _CALL_SECONDS else []
        if self.calls > _BUDGET:
            problems.append(f"laggard took {self.calls:.2%} of the training, its budget is {_BUDGET:.2%}")
        return problems


@dataclass
class OwnResult:
    """How it went."""

    fault: OwnFault
    problems: list[str] = field(default_factory=list[str])
    skipped: str = ""
    cost: Cost | None = None

    @property
    def passed(self) -> bool:
        """Whether training noticed nothing."""
        return not self.problems


class OwnPlay:
    """Plays faults of laggard, each on a job of its own, and compares with a job that laggard does not watch."""

    def __init__(self, stack: Stack, show: Callable[[str], None]) -> None:
        self._stack = stack
        self._show = show
        self._references: dict[int, list[list[str]]] = {}
        self._lock = threading.Lock()

    def play(self, fault: OwnFault) -> OwnResult:
        """Play a fault; whatever goes wrong stands in its result."""
        result = OwnResult(fault, skipped=fault.missing())
        if not result.skipped:
            try:
                self._play(fault, result)
            except (CommandError, OSError, subprocess.SubprocessError) as error:
                result.problems.append(str(error))
        said = "; ".join(result.problems) or (
            f"skipped: {result.skipped}" if result.skipped else "losses bit-identical, exit codes 0"
        )
        if result.cost:
            said += f"; {result.cost}"
        self._show(f"{'ok  ' if result.passed else 'FAIL'} {fault.name}: {said}")
        return result

    def _play(self, fault: OwnFault, result: OwnResult) -> None:
        with self._lock:
            reference = self._references.get(fault.steps)
            if reference is None:
                # The pause between two steps changes no number.
                flags = ("--steps", str(fault.steps), "--pause", "0.01")
                reference = self._losses(f"unwatched-{fault.steps}", ACTS["nothing"], flags, instrumented=False)[0]
                self._references[fault.steps] = reference
        act = {**ACTS, **OUTAGES}[fault.act]
        counts = fault.steps if fault.counted else 0
        losses, counted = self._losses(fault.name, act, ("--steps", str(fault.steps)), counts=counts)
        if losses != reference:
            result.problems.append("the losses differ from those of a run without laggard")
        if counted != counts:
            result.problems.append(f"Prometheus counts {counted} steps of {counts}")
        result.cost = Cost.of(self._stack.servers.folder / fault.name)
        result.problems += result.cost.problems()

    def _losses(
        self, name: str, act: Act, flags: tuple[str, ...], *, instrumented: bool = True, counts: int = 0
    ) -> tuple[list[list[str]], float | None]:
        """Run a job to its end. Return the losses of each rank, and the steps that Prometheus knows in the end.

        With ``counts`` that is waited for.
        """
        servers = self._stack.servers
        folder = servers.folder / name
        with self._stack.place() as ports:
            acts = act(Scene(self._stack, folder, ports, servers.state_directories[0]))
            environment = next(acts)
            try:
                with Job(
                    folder,
                    name,
                    WORLD,
                    ports,
                    servers.state_directories[:1],
                    environment=environment,
                    flags=flags,
                    instrumented=instrumented,
                    program=TIMED_PROGRAM if instrumented else PROGRAM,
                ) as job:
                    self._wait_for_start(job)
                    next(acts)
                    self._wait_for_end(job)
                    codes = [process.poll() for process in job.processes]
                    if any(codes):
                        raise CommandError(f"exit codes {codes}: {job.log(0)[-2000:]}")
                    next(acts, None)
                    steps = self._count(name, counts) if counts else 0
            finally:
                acts.close()
        return [json.loads((folder / f"losses{rank}").read_text()) for rank in range(WORLD)], steps

    def _wait_for_start(self, job: Job) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not (job.folder / "started").exists():
            if time.monotonic() > deadline or any(process.poll() is not None for process in job.processes):
                raise CommandError(f"the job did not start: {job.log(0)[-2000:]}")
            self._stack.pause(0.1)

    def _wait_for_end(self, job: Job) -> None:
        deadline = time.monotonic() + _RUN_SECONDS
        while any(process.poll() is None for process in job.processes):
            if time.monotonic() > deadline:
                raise CommandError(f"the job did not end within {_RUN_SECONDS:.0f} s: {job.log(0)[-2000:]}")
            self._stack.pause(0.1)

    def _count(self, run: str, steps: int) -> float | None:
        """Return the steps of the rank that made fewest, as the node exporter's series says, once it is up to date."""
        prometheus = Prometheus(self._stack.servers.addresses["prometheus"])
        deadline = time.monotonic() + _COUNT_SECONDS
        value = None
        while value != steps and time.monotonic() < deadline:
            self._stack.pause(0.5)
            with contextlib.suppress(CommandError):  # somebody else's fault has just ended it
                found = prometheus.query(f'min(training_process_steps_total{{training_run="{run}"}})')
                value = found[0].value if found else None
        prometheus.close()
        return value
