"""``laggard report``."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

from laggard_cli.clusters import Run, add_cluster, find_run
from laggard_cli.console import stderr
from laggard_cli.errors import CommandError
from laggard_cli.pack import SEVERITIES, kind
from laggard_cli.past.times import MOMENTS, moment, seconds
from laggard_cli.prometheus import Prometheus
from laggard_cli.report import history as runs
from laggard_cli.report.causes import cause
from laggard_cli.report.costs import cost, losses
from laggard_cli.report.evidence import beside
from laggard_cli.report.judgement import judged, missing
from laggard_cli.report.page import Report, Told, page
from laggard_cli.report.span import EXPECTED, Span, find, seconds_back
from laggard_cli.report.verdicts import read
from laggard_cli.servers import add_server, connect
from laggard_cli.terminal import printable

#: Kinds of memory that a verdict names, as the ranks export them.
_KINDS = {"device": ("device_allocated", "device_reserved"), "host": ("host_rss", "worker_rss")}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Example:\n  laggard report --prometheus http://localhost:9090 --run llama-7b-17 --last 2h -o incident.html\n"
        "Without --from, --to and --last it is about the whole run, as far back as 30 days. "
        "docs/report.md says what it shows."
    )
    add_server(parser, "a server that runs laggard's rules")
    parser.add_argument("--run", dest="name", required=True, metavar="RUN", help="the run; it may have ended")
    add_cluster(parser, "the cluster of the run, where several have one of that name")
    parser.add_argument("--from", dest="begin", metavar="TIME", help=f"{MOMENTS}; local without a zone")
    parser.add_argument("--to", dest="end", metavar="TIME", help="a time; by default the run's end, or now")
    parser.add_argument("--last", metavar="DURATION", help="instead of --from: such as 90m or 2h before the end")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="(default report.html)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the page. The exit code says whether it was written, not whether the run is healthy."""
    begin = moment("--from", options.begin) if options.begin else None
    end = moment("--to", options.end, ahead=True) if options.end else None
    last = seconds("--last", options.last) if options.last else None
    if begin is not None and last is not None:
        raise CommandError("--from and --last exclude each other: give one of them")
    if begin is not None and end is not None and begin >= end:
        raise CommandError(f"--from {options.begin} is not before --to {options.end}: the range is empty")
    began = time.monotonic()
    # Before minutes of queries, not after them.
    with (
        _written(options.output) as write,
        contextlib.closing(connect(options)) as prometheus,
        _progress() as tell,
    ):
        tell("looking for the run")
        reach, until = seconds_back(begin, end)
        name = find_run(prometheus, options.name, options.cluster, EXPECTED, seconds=reach, at=until)
        span = find(prometheus, name, begin, end, last)
        server = runs.Counted(prometheus, tell)
        report = gather(server, prometheus, name, span)
        tell("drawing")
        size = write(page(report))
    print(printable(report.judged.headline))
    verdicts = f"{len(report.told)} verdict{'' if len(report.told) == 1 else 's'}"
    print(
        f"{options.output}: {size / 1024:.0f} KiB; {verdicts}; {server.queries} queries, "
        f"{server.samples} samples, {time.monotonic() - began:.1f} s"
    )
    return 0


def gather(server: runs.Counted, prometheus: Prometheus, name: Run, span: Span) -> Report:
    """Return all that the page shows."""
    history = runs.read(server, name, span)
    problems, remarks = read(server, prometheus, name, span, sorted(set(history.hosts.values())))
    if any(kind(problem.alert) == "hang" for problem in problems):
        runs.read_places(server, history)
    kinds = {problem.labels.get(runs.KIND, "") for problem in problems if kind(problem.alert) == "memory"}
    if kinds:
        runs.read_memory(
            server, history, [each for memory in kinds for each in _KINDS.get(memory or "device", (memory,))]
        )
    told = tuple(
        Told(each, cost(server, history, each), beside(server, history, each), cause(each, problems))
        for each in problems
    )
    told = tuple(sorted(told, key=_rank))
    lost = losses(server, history)
    exporters = bool(
        server.over(f"group(training_process_up{name.matcher()})", span, max(span.step, (span.end - span.begin) / 12))
    )
    unknown = tuple(missing(history, lost, exporters=exporters, remarks=remarks))
    return Report(
        history=history,
        told=told,
        judged=judged(history, [each.problem for each in told], [each.says for each in told], unknown),
        losses=lost,
        missing=unknown,
        server=server.name,
        made=time.time(),
    )


def _rank(told: Told) -> tuple[int, bool, float]:
    """Return the order of problems: the gravest first, causes before what follows from them, then by their cost."""
    return (
        SEVERITIES.index(told.problem.severity),
        told.cause is not None,
        -(told.cost.rank_hours if told.cost else 0.0),
    )


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    """Show on a terminal what is being done."""
    console = stderr()
    with console.status("", spinner="dots") if console.is_terminal else contextlib.nullcontext() as status:
        yield (lambda _: None) if status is None else (lambda what: status.update(f"report: {what}"))


@contextlib.contextmanager
def _written(path: Path) -> Generator[Callable[[str], int]]:
    """Give a function that writes a file as a whole: what was there stays until the new content is complete.

    Raises:
        CommandError: the file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise CommandError(f"--output {path}: {error.strerror}") from error
    unfinished = Path(name)

    def write(content: str) -> int:
        try:
            size = unfinished.write_bytes(content.encode("utf-8", errors="replace"))
            # As a file that is simply opened would be.
            mask = os.umask(0)
            os.umask(mask)
            unfinished.chmod(0o666 & ~mask)
            unfinished.replace(path)
        except OSError as error:
            raise CommandError(f"--output {path}: {error.strerror}") from error
        return size

    try:
        if path.is_dir():
            raise CommandError(f"--output {path}: is a directory")
        os.close(handle)
        yield write
    finally:
        unfinished.unlink(missing_ok=True)
