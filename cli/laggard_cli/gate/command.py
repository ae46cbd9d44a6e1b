"""``laggard gate``."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from laggard.shared.phases import Phase
from laggard_cli.clusters import add_cluster
from laggard_cli.console import stderr, stdout
from laggard_cli.errors import CommandError
from laggard_cli.gate import baseline as saved
from laggard_cli.gate.files import junit, plain
from laggard_cli.gate.history import FORM, is_span, parse, read_span
from laggard_cli.gate.measured import Measured, joined
from laggard_cli.gate.steps import read_steps, step_files
from laggard_cli.gate.verdict import PAUSES, WHOLE, Outcome, judge
from laggard_cli.gate.view import markdown, show
from laggard_cli.past.times import percentage, seconds
from laggard_cli.servers import add_server, connect
from laggard_cli.terminal import to_json

#: Exit code for a verdict that there are too few steps for; 2 is bad input, as everywhere.
UNDECIDED = 3
_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.UNDECIDED: UNDECIDED}
_SUMMARY = "GITHUB_STEP_SUMMARY"
_MEMORY = ("device_allocated", "device_reserved", "device_peak", "host_rss", "worker_rss")
_NAMES = (*WHOLE, PAUSES, *(phase.label for phase in Phase), *_MEMORY)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Example:\n  laggard gate --baseline baseline.json --candidate steps/ --junit gate.xml\n"
        f"A run is a .jsonl file, a folder or pattern of them, a file that --save wrote, or {FORM} of Prometheus.\n"
        "Exit code 0: no slow-down; 1: slower; 2: bad input; 3: too few steps to decide. docs/gate.md has its rules."
    )
    parser.add_argument(
        "--baseline",
        nargs="+",
        metavar="RUN",
        help="the reference: one or more recordings; may be left out with --save",
    )
    parser.add_argument(
        "--candidate", nargs="+", required=True, metavar="RUN", help="what is judged: one or more recordings"
    )
    parser.add_argument(
        "--limit", default="5%", metavar="PERCENT", help="the slow-down to be found, such as 5%% (default %(default)s)"
    )
    parser.add_argument(
        "--ignore", nargs="+", default=[], choices=_NAMES, metavar="NAME", help="report and do not judge, e.g. host_rss"
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=0,
        metavar="N",
        help="leave out N more steps at the start of each run in JSON lines",
    )
    add_server(parser, "the server that has the runs")
    add_cluster(parser, "the cluster of the runs, where several have some of those names")
    parser.add_argument(
        "--interval", default="60s", metavar="DURATION", help="of means from Prometheus (default %(default)s)"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the candidate as a baseline, if it passes")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help=f"write a summary; added to where it is ${_SUMMARY}"
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit's XML")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Compare, print, write what was asked for, and return the verdict as the exit code."""
    limit = percentage("--limit", options.limit) / 100
    options.interval = seconds("--interval", options.interval)
    if options.warmup < 0:
        raise CommandError(f"--warmup must be 0 or more steps, got {options.warmup}")
    if options.baseline is None and options.save is None:
        raise CommandError("--baseline is needed, or --save FILE to write the first one")
    candidate = _read("--candidate", options.candidate, options)
    if options.baseline is None:
        _no_verdict(options)
        saved.save(options.save, candidate)
        print(f"{candidate.length} {candidate.unit}s of {candidate.ranks} ranks of {candidate.run} in {options.save}")
        return 0
    baseline = _read("--baseline", options.baseline, options)
    _alike("the baseline", baseline, "the candidate", candidate)
    verdict = judge(baseline, candidate, limit, options.ignore)
    if options.markdown:
        adds = os.environ.get(_SUMMARY) == str(options.markdown)
        _write("--markdown", options.markdown, markdown(verdict).encode(), adds=adds)
    if options.junit:
        _write("--junit", options.junit, junit(verdict))
    if options.json:
        print(to_json(plain(verdict), indent=2))
    else:
        show(stdout(), verdict)
    if options.save and verdict.outcome is Outcome.PASS:
        saved.save(options.save, candidate)
    return _CODES[verdict.outcome]


def _read(flag: str, sources: Sequence[str], options: argparse.Namespace) -> Measured:
    runs = [_read_one(source, options) for source in sources]
    for other in runs[1:]:
        _alike(f"{flag} {sources[0]}", runs[0], f"{flag} {other.source}", other)
    return joined(" ".join(sources), runs)


def _read_one(source: str, options: argparse.Namespace) -> Measured:
    if is_span(source):
        with contextlib.closing(connect(options)) as server:
            return read_span(server, parse(source), options.interval, options.cluster)
    files = step_files(source)
    if len(files) == 1 and saved.is_baseline(files[0]):
        return saved.load(files[0])
    console = stderr()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        return read_steps(source, progress.track(files, description=f"reading {len(files)} files"), options.warmup)


def _alike(first: str, one: Measured, second: str, two: Measured) -> None:
    """Refuse what cannot be compared."""
    if one.ranks != two.ranks:
        raise CommandError(
            f"{first} has {one.ranks} ranks, {second} {two.ranks}; only runs of the same number of ranks can be "
            "compared"
        )
    if one.unit != two.unit:
        raise CommandError(
            f"{first} has {one.unit}s, {second} {two.unit}s; compare JSON lines with JSON lines, and Prometheus "
            "with Prometheus"
        )


def _no_verdict(options: argparse.Namespace) -> None:
    for flag in ("junit", "markdown", "json"):
        if getattr(options, flag):
            raise CommandError(f"--{flag} needs --baseline: without one there is no verdict")


def _write(flag: str, path: Path, content: bytes, *, adds: bool = False) -> None:
    try:
        with path.open("ab" if adds else "wb") as file:
            file.write(content)
    except OSError as error:
        raise CommandError(f"{flag} {path}: {error.strerror}") from error
