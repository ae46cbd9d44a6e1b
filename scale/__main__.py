"""Says what thousands of ranks cost one Prometheus with the whole rule pack, and whether it is still right and in time.

    python -m scale --ranks 1000 10000 --json scale.json

Simulated nodes serve real pages on loopback, each its exporter's and the one of its eight ranks; Prometheus scrapes and
evaluates as deploy/prometheus/prometheus.yml has it. Half of the ranks are one run, in which one rank becomes slow; a
quarter are another, which hangs; a third run begins anew.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from laggard_cli.errors import CommandError
from scale.jobs import culprits, jobs
from scale.prometheus import INTERVAL, Reading, Server, prometheus
from scale.server import serve

_FEWEST = 16
#: Of the pages' beginning, until all targets have been scraped twice.
_SETTLED = 90.0


@dataclass
class Result:
    """What so many ranks cost, and what was said of them."""

    ranks: int
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


def main() -> int:
    """Print a table; return 0 when all verdicts came and no evaluation was missed."""
    options = _options()
    results: list[Result] = []
    try:
        for ranks in options.ranks:
            results.append(_measure(ranks, options))
            print(_row(results[-1]), flush=True)
    except CommandError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 2
    if options.json:
        machine = {"processor": platform.processor() or platform.machine(), "processors": os.cpu_count()}
        written = {"machine": machine, "step_seconds": options.step, "results": [asdict(each) for each in results]}
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return int(any(each.not_said or each.missed_evaluations or each.failed_evaluations for each in results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scale", description="What thousands of ranks cost one Prometheus.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 1000, 10_000], help="(default 100 1000 10000)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each number of ranks (default %(default)s)")
    parser.add_argument("--fault", type=float, default=300.0, help="when things go wrong (default %(default)s)")
    parser.add_argument("--step", type=float, default=0.5, help="seconds of own work in a step (default %(default)s)")
    parser.add_argument("--without-rules", action="store_true", help="storage alone, to see what rules add")
    parser.add_argument("--program", default="prometheus", help="the server's binary (default: on PATH)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    if min(options.ranks) < _FEWEST:
        parser.error(f"--ranks {min(options.ranks)}: at least {_FEWEST}")
    if options.seconds < options.fault + INTERVAL or options.fault < _SETTLED:
        parser.error(f"--fault {options.fault:g}: at least {_SETTLED:g}, and {INTERVAL} less than --seconds")
    return options


def _measure(ranks: int, options: argparse.Namespace) -> Result:
    runs = jobs(ranks, options.step, options.fault)
    ours, theirs = multiprocessing.Pipe()
    pages = multiprocessing.get_context("spawn").Process(target=serve, args=(runs, theirs), daemon=True)
    with tempfile.TemporaryDirectory(prefix="laggard-scale-") as name:
        pages.start()
        try:
            port, paths, began = ours.recv()
            with prometheus(options.program, Path(name), port, paths, rules=not options.without_rules) as server:
                result = Result(ranks, rules=not options.without_rules)
                return _watch(server, psutil.Process(pages.pid), result, options, began)
        finally:
            pages.terminate()
            pages.join()


def _watch(server: Server, pages: psutil.Process, result: Result, options: argparse.Namespace, began: float) -> Result:
    fault = began + options.fault
    wanted = culprits(jobs(result.ranks, options.step, options.fault))
    said: dict[str, float] = {}
    first: Reading | None = None
    served = 0.0
    while time.time() < began + options.seconds:
        time.sleep(5)
        reading = server.read()
        result.resident_bytes = max(result.resident_bytes, reading.resident_bytes)
        if first is None and reading.time > began + _SETTLED:
            first, served = reading, sum(pages.cpu_times()[:2])
        for labels in server.firing():
            rank = labels.get("training_rank", "")
            said.setdefault(f"{labels['alertname']} {labels.get('training_run', '')} {rank}", reading.time - fault)
        if first is not None:
            failed = server.value("count(up == 0) or vector(0)")
            result.failed_scrapes = max(result.failed_scrapes, failed)
    last = server.read()
    if first is None:
        raise CommandError(f"the server answered nothing within {options.seconds:g} s")
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


def _row(result: Result) -> str:
    return json.dumps(asdict(result))


if __name__ == "__main__":
    sys.exit(main())
