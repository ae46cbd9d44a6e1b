"""A script that ran: what its stopwatch noted, and what laggard said of it."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

from laggard._partition import LEFT_OUT_SPACING
from laggard.shared import statefile
from tests.field.stopwatch import FOLDER
from tests.support.launch import Launcher
from tests.support.otlp import Receiver


@dataclass(frozen=True)
class Rank:
    """One process that trained, by its own notes."""

    name: str
    pid: int
    updates: list[int]
    """When the script called a step done, in nanoseconds of unix time."""
    losses: list[str]
    counted: int | None
    """Steps by the framework's own count."""
    waits: list[tuple[int, int]]
    """When the stopwatch was read, and how long the main thread had waited for a processor by then."""
    pieces: list[tuple[str, int, int]]
    traced: list[dict[str, Any]]
    """The whole steps in laggard's trace; empty where it was not in the process."""

    def stopwatch(self, step: dict[str, Any]) -> dict[str, float]:
        """Seconds of each phase by the stopwatch, inside of a traced step; ``other`` is the rest."""
        begin, end = _span(step)
        seconds = defaultdict(float, other=(end - begin) * 1e-9)
        for phase, started, ended in self.pieces:
            inside = max(0, min(ended, end) - max(started, begin)) * 1e-9
            seconds[phase] += inside
            seconds["other"] -= inside
        return seconds

    def reported(self, step: dict[str, Any]) -> dict[str, float]:
        """Seconds of each phase in a traced step by laggard."""
        return {phase: nanoseconds * 1e-9 for phase, nanoseconds in step["phases_ns"].items()}

    def waited(self, step: dict[str, Any]) -> float:
        """Seconds, at most, that the main thread was ready to run in a traced step and had no processor."""
        begin, end = _span(step)
        before = max((waited for at, waited in self.waits if at <= begin), default=0)
        return (min((waited for at, waited in self.waits if at >= end), default=self.waits[-1][1]) - before) * 1e-9

    def left_out(self) -> dict[int, str]:
        """Steps that are not measured, with the reason; but first batches that are as far apart as they have to be."""
        reasons = {number: step["excluded"] for number, step in enumerate(self.traced, 1) if step["excluded"]}
        before = -LEFT_OUT_SPACING
        for number in [number for number, reason in reasons.items() if reason == "first_batch"]:
            if number - before >= LEFT_OUT_SPACING:
                del reasons[number]
            before = number
        return reasons

    def updates_in_steps(self) -> list[int]:
        """How often the script called a step done within each of laggard's."""
        return [sum(begin <= at < end for at in self.updates) for begin, end in (_span(step) for step in self.traced)]


def summed(steps: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the seconds of each phase in all of some steps."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for phase, took in step.items():
            seconds[phase] += took
    return seconds


def _span(step: dict[str, Any]) -> tuple[int, int]:
    begin: int = step["started_unix_ns"]
    return begin, begin + step["duration_ns"]


@dataclass(frozen=True)
class Run:
    """A script that ran to its end."""

    code: int
    output: str
    errors: str
    ranks: list[Rank]
    snapshots: list[statefile.Snapshot] = field(default_factory=list[statefile.Snapshot])
    receiver: Receiver | None = None

    def losses(self) -> dict[str, list[str]]:
        """Losses of each rank."""
        return {rank.name: rank.losses for rank in self.ranks}

    def snapshot(self, rank: Rank) -> statefile.Snapshot:
        """The state file that the rank left."""
        (found,) = [snapshot for snapshot in self.snapshots if snapshot.facts.pid == rank.pid]
        return found

    def value(self, rank: Rank, metric: str, **labels: str) -> float | None:
        """The newest value that a rank sent of a metric, and nothing where it sent none."""
        assert self.receiver is not None
        number = str(self.snapshot(rank).facts.rank)
        found = self.receiver.series(metric, **labels)
        # Where several processes are one rank, all of them have to say the same.
        values = {value for series, value in found.items() if dict(series).get("training.rank") == number}
        return values.pop() if len(values) == 1 else None

    def remarks(self) -> list[str]:
        """What was printed on standard error, but for what laggard says."""
        return [line for line in self.errors.splitlines() if not line.startswith("laggard:")]


class Beside:
    """Runs a program to its end without laggard and with it, side by side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def forked(self, ranks: int, *program: str | Path) -> tuple[Run, Run]:
        """Run a program in processes that have torch already; return what became of it without laggard, and with it."""

        def start(launcher: Launcher, environment: dict[str, str], *, observed: bool) -> Popen[str]:
            if not observed:
                environment["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "laggard"
            if ranks == 1:
                return launcher.fork(*program, **environment)
            return launcher.fork_ranks(ranks, *program, **environment)

        return self._run(start)

    def started(self, *program: str | Path, **more: str) -> tuple[Run, Run]:
        """Run a program as a user starts it: with Python, and with `laggard run`."""
        python = Path(sys.executable)
        command = (python, *program)

        def start(launcher: Launcher, environment: dict[str, str], *, observed: bool) -> Popen[str]:
            environment |= {"PYTHONPATH": str(Path.cwd()), **more}
            before = (python.with_name("laggard"), "run") if observed else ()
            return launcher._start(*before, *command, **environment)

        return self._run(start)

    def _run(self, start: Callable[..., Popen[str]]) -> tuple[Run, Run]:
        with Receiver() as receiver, Launcher(self._folder) as launcher:
            processes: list[tuple[Popen[str], Path]] = []
            for observed in (False, True):
                notes = self._folder / ("observed" if observed else "plain")
                notes.mkdir()
                environment = {
                    FOLDER: str(notes),
                    "LAGGARD_WARMUP_STEPS": "0",
                    "HF_HUB_OFFLINE": "1",
                    **receiver.environment,
                }
                processes.append((start(launcher, environment, observed=observed), notes))
            plain, run = (_ended(process, notes) for process, notes in processes)
            snapshots = [statefile.read(path) for path in launcher.state_directory.glob(f"*{statefile.SUFFIX}")]
        return plain, replace(run, snapshots=snapshots, receiver=receiver)


def _ended(process: Popen[str], notes: Path) -> Run:
    output, errors = process.communicate(timeout=600)
    return Run(process.returncode, output, errors, read(notes))


def read(folder: Path) -> list[Rank]:
    """Read what the processes of a run left in a folder."""
    ranks: list[Rank] = []
    for path in folder.glob("*.json"):
        notes = json.loads(path.read_text())
        trace = path.with_suffix(".jsonl")
        lines = trace.read_text().splitlines() if trace.exists() else []
        # The process ended before the last step did, so it is not whole.
        whole = [step for step in map(json.loads, lines) if step["excluded"] != "incomplete"]
        fields = [notes[name] for name in ("name", "pid", "steps", "losses", "counted", "waits", "pieces")]
        ranks.append(Rank(*fields, traced=whole))
    return sorted(ranks, key=lambda rank: rank.name)
