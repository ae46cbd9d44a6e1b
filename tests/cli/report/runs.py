"""A run as a report sees it, made up: one rank becomes slow in backward, and one reports nothing for a while."""

from __future__ import annotations

from typing import cast

import numpy as np

from laggard_cli.clusters import Run
from laggard_cli.pack import alert
from laggard_cli.prometheus import Range
from laggard_cli.report.costs import Losses, cost
from laggard_cli.report.evidence import Beside
from laggard_cli.report.history import Counted, History
from laggard_cli.report.judgement import judged, missing
from laggard_cli.report.page import Report, Told
from laggard_cli.report.span import Span
from laggard_cli.report.verdicts import Firing, Problem

BEGIN = 1_700_000_000.0
#: What a run, a host or a rule may be called by somebody who means harm.
HOSTILE = "a<script>alert(1)</script></style><img src=https://example.org/x onerror=alert(2)>\"'&\u202e\x1b[31m"


class Server:
    """Says of each time that the culprit makes a step of 1.5 s by 0.5 s longer."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def say(self, what: str) -> None:
        """Nobody waits."""

    def over(self, expression: str, span: Span, step: float | None = None) -> list[Range]:
        """Answer with one series."""
        self.asked.append(expression)
        return [Range({}, dict.fromkeys(span.times.tolist(), 0.5 / 1.5))]


def run(
    ranks: int = 8, culprit: int = 5, *, name: str = "llama-7b-17", columns: int = 120, healthy: bool = False
) -> Report:
    """Return an hour of a run whose culprit needs 0.5 s more of a step of 1 s in its second half."""
    span = Span(BEGIN, BEGIN + 3600, 3600 / columns, 60.0)
    times = span.times
    own = np.full((ranks, len(times)), 0.8) + 0.001 * np.sin(np.arange(ranks))[:, None]
    slow = np.zeros(len(times)) if healthy else np.where(times >= BEGIN + 1800, 0.5, 0.0)
    own[culprit] += slow
    wait = 1.0 + slow - own
    silent = slice(columns // 4, columns // 3)
    own[1, silent] = wait[1, silent] = np.nan
    phases = {"data": 0.1, "forward": 0.3, "backward": 0.4, "communication": 0.2}
    layers = {phase: np.full(len(times), seconds) for phase, seconds in phases.items()}
    layers["communication"] = layers["communication"] + slow
    names = [str(rank) for rank in range(ranks)]
    history = History(
        run=Run("", name),
        span=span,
        times=times,
        ranks=names,
        own=own,
        wait=wait,
        reports=np.where(np.isfinite(own), 1.0, np.nan),
        phases=layers,
        facts={"run:training_step_seconds:mean": 1.0 + slow, "run:training_data_share:ratio": np.full(len(times), 0.1)},
        limits={"straggler_score": 1.2, "input_bound_share": 0.2},
        hosts={rank: f"{name}-node-{int(rank) // 8}" for rank in names},
        groups={},
        information=[{"training_commit": name, "training_precision": "bf16"}],
        signals={"communication": 1.0},
        started=BEGIN,
        expected=ranks,
    )
    problems = [] if healthy else [problem(name, str(culprit), history.hosts[str(culprit)])]
    losses = Losses(BEGIN, BEGIN + 3600, float(ranks), 0.8, {"waiting": 0.15, "startup": 0.05}, 2.0)
    beside = Beside({"backward": 0.9, "forward": 0.3}, {"backward": 0.4, "forward": 0.3})
    server = cast("Counted", Server())
    told = tuple(Told(each, cost(server, history, each), beside) for each in problems)
    unknown = tuple(missing(history, losses, exporters=True, remarks=[]))
    says = [each.says for each in told]
    return Report(history, told, judged(history, problems, says, unknown), losses, unknown, "http://prometheus", BEGIN)


def problem(name: str, rank: str, host: str) -> Problem:
    """Return a verdict on a slow rank that fires for the last 25 minutes."""
    labels = {
        "alertname": "TrainingStraggler",
        "severity": "warning",
        "training_run": name,
        "training_phase": "backward",
    }
    whole = {**labels, "training_rank": rank, "host_name": host}
    return Problem(
        alert="TrainingStraggler",
        severity="warning",
        labels=labels,
        firings=[Firing(whole, BEGIN + 2100, BEGIN + 3600)],
        lasts=True,
        title="One rank makes the others wait in every step.",
        summary=f"Rank {rank} of run {name} on {host} needs 1.62 times as long as its peers in backward.",
        cost=alert("TrainingStraggler")["annotations"]["cost"],
        description=f"Rank {rank} of run {name} needs 1.3 s.",
        recommendation=f"Compare the GPU of {host}.",
        runbook=f"# {name}",
        runbook_url=f"https://runbooks/{name}",
        value=1.62,
        worst=whole,
    )
