"""Plays runs under a server and gathers what it costs and what it says."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from laggard_cli.errors import CommandError
from scale.jobs import culprits, jobs
from scale.prometheus import Reading, Server, prometheus
from scale.server import serve

#: Seconds from the pages' beginning until all targets have been scraped twice.
SETTLED = 90.0
#: Between two looks at the server.
_LOOK = 5.0


@dataclass(frozen=True)
class Plan:
    """How runs are played: see ``python -m scale --help``. Seconds."""

    program: str
    seconds: float
    fault: float
    step: float
    rules: bool


@dataclass
class Result:
    """What so many ranks cost, and what was said of them."""

    ranks: int
    #: Seconds of a rank's own work in a step.
    step: float
    rules: bool
    series: float = 0.0
    samples_each_second: float = 0.0
    #: Processors in use by Prometheus on average, after the first minutes; and by what serves the pages.
    processors: float = 0.0
    pages_processors: float = 0.0
    resident_bytes: int = 0
    #: Sum over the groups, and the longest, of their newest evaluations, seconds.
    rules_seconds: float = 0.0
    longest_group_seconds: float = 0.0
    missed_evaluations: float = 0.0
    failed_evaluations: float = 0.0
    failed_scrapes: float = 0.0
    slowest_scrape_seconds: float = 0.0
    #: Seconds from the fault to the alert, by its name and whom it names.
    alerts: dict[str, float] = field(default_factory=dict[str, float])
    #: What had to be said and was not.
    not_said: list[str] = field(default_factory=list[str])


def measure(ranks: int, plan: Plan) -> Result:
    """Play runs of so many ranks together. Raises :class:`CommandError` where the server can not be had."""
    runs = jobs(ranks, plan.step, plan.fault)
    ours, theirs = multiprocessing.Pipe()
    pages = multiprocessing.get_context("spawn").Process(target=serve, args=(runs, theirs), daemon=True)
    with tempfile.TemporaryDirectory(prefix="laggard-scale-") as name:
        pages.start()
        theirs.close()
        try:
            port, paths, began = _told(ours)
            with prometheus(plan.program, Path(name), port, paths, rules=plan.rules) as server:
                result = Result(ranks, plan.step, rules=plan.rules)
                return _watch(server, psutil.Process(pages.pid), result, plan, began)
        finally:
            pages.terminate()
            pages.join()


def _told(pages: Connection) -> tuple[int, list[str], float]:
    """Return the port, the paths and the beginning of the pages."""
    try:
        return pages.recv()
    except EOFError:
        raise CommandError("what serves the pages ended before it served") from None


def _watch(server: Server, pages: psutil.Process, result: Result, plan: Plan, began: float) -> Result:
    fault = began + plan.fault
    wanted = culprits(jobs(result.ranks, plan.step, plan.fault))
    said: dict[str, float] = {}
    first: Reading | None = None
    served = 0.0
    while time.time() < began + plan.seconds:
        time.sleep(_LOOK)
        reading = server.read()
        result.resident_bytes = max(result.resident_bytes, reading.resident_bytes)
        if first is None and reading.time > began + SETTLED:
            first, served = reading, sum(pages.cpu_times()[:2])
        for labels in server.firing():
            rank = labels.get("training_rank", "")
            said.setdefault(f"{labels['alertname']} {labels.get('training_run', '')} {rank}", reading.time - fault)
        if first is not None:
            failed = server.value("count(up == 0) or vector(0)")
            result.failed_scrapes = max(result.failed_scrapes, failed)
    last = server.read()
    if first is None:
        raise CommandError(f"the server answered nothing within {plan.seconds:g} s")
    passed = last.time - first.time
    result.series = last.series
    result.samples_each_second = (last.samples - first.samples) / passed
    result.processors = (last.processor_seconds - first.processor_seconds) / passed
    result.pages_processors = (sum(pages.cpu_times()[:2]) - served) / passed
    result.rules_seconds = sum(last.groups.values())
    result.longest_group_seconds = max(last.groups.values(), default=0.0)
    result.missed_evaluations = last.missed - first.missed
    result.failed_evaluations = last.failed - first.failed
    result.slowest_scrape_seconds = server.value("max(scrape_duration_seconds)")
    result.alerts = {name: round(seconds, 1) for name, seconds in sorted(said.items(), key=lambda item: item[1])}
    if result.rules:
        result.not_said = [
            name
            for name in (f"{each.alert} {each.run} {each.rank}" for each in wanted)
            if not any(known == name and seconds > 0 for known, seconds in said.items())
        ]
    return result
