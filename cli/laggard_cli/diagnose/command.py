"""``laggard diagnose``."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Group, RenderableType
from rich.text import Text

from laggard_cli.clusters import add_cluster
from laggard_cli.console import stdout
from laggard_cli.diagnose.gather import diagnose
from laggard_cli.diagnose.model import Diagnosis
from laggard_cli.diagnose.view import view
from laggard_cli.diagnose.watch import watch
from laggard_cli.errors import CommandError
from laggard_cli.folders import state_directory
from laggard_cli.past.times import MOMENTS, moment, seconds
from laggard_cli.prometheus import Prometheus
from laggard_cli.servers import add_server, connect
from laggard_cli.stacks import Process, of_ranks, text
from laggard_cli.terminal import printable, printable_lines, to_json

#: Verdicts on a rank whose process lives and does nothing that can be seen.
_STANDS_STILL = ("TrainingStalled", "TrainingRankFrozen")

_WATCH = "5s"
#: Of the number of a rank.
_DIGITS = 9


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Example:\n  laggard diagnose --prometheus http://prometheus:9090 --run llama-7b-17"
    parser.set_defaults(every=None)
    add_server(parser, "a server that runs laggard's rules")
    parser.add_argument("--run", dest="name", metavar="RUN", help="one run; by default all that are known now")
    add_cluster(parser, "runs of one cluster, by the label of the series; by default of all")
    parser.add_argument(
        "--at",
        metavar="TIME",
        help=f"what was known then: {MOMENTS}; local without a zone",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON; with --watch a line each time, with the key error where the server gave no answer",
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        const=_WATCH,
        metavar="SECONDS",
        help="ask again and again until Ctrl-C (default every 5 s)",
    )
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="also say where ranks that stand still are in their Python code, if they run on this host; needs py-spy",
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="FOLDER", help="folder of the ranks' state files, for --stacks"
    )


@dataclass(frozen=True)
class _Answer:
    """What was found, and the stacks of the ranks that stand still by run and number of the rank."""

    diagnoses: list[Diagnosis]
    stacks: dict[tuple[str, int], list[Process]]

    def text(self) -> RenderableType:
        """For a terminal."""
        return Group(view(self.diagnoses), self.stack_text())

    def stack_text(self) -> RenderableType:
        """For a terminal, of the stacks alone."""
        return Group(*(Text(printable_lines(lines), no_wrap=True, overflow="ignore") for lines in text(self.stacks)))

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"runs": [self._plain(diagnosis) for diagnosis in self.diagnoses]}

    def _plain(self, diagnosis: Diagnosis) -> dict[str, Any]:
        plain = {**asdict(diagnosis), "missing": list(diagnosis.missing)}
        stacks = {rank: list(map(asdict, each)) for (run, rank), each in self.stacks.items() if run == diagnosis.run}
        return {**plain, "stacks": stacks} if self.stacks else plain


def run(options: argparse.Namespace) -> int:
    """Print the verdicts. The exit code says whether the question was answered, not whether the run is healthy."""
    options.watch = None if options.watch is None else seconds("--every" if options.every else "--watch", options.watch)
    if options.at and (options.watch or options.stacks):
        raise CommandError("--at is about the past: neither --watch nor --stacks goes with it")
    options.at = moment("--at", options.at) if options.at else None
    prometheus = connect(options)
    try:
        answer = _query(prometheus, options)
        if options.watch is None:
            _print(answer, as_json=options.json)
        elif options.json:
            _repeat(prometheus, options, answer)
        else:
            return _watch(prometheus, options, answer)
    finally:
        prometheus.close()
    return 0


def _query(prometheus: Prometheus, options: argparse.Namespace) -> _Answer:
    diagnoses = diagnose(prometheus, options.name, options.at, options.cluster)
    return _Answer(diagnoses, _stacks(diagnoses, state_directory(options)) if options.stacks else {})


def _print(answer: _Answer, *, as_json: bool) -> None:
    if as_json:
        print(to_json(answer.plain(), indent=2))
    else:
        stdout().print(answer.text(), crop=False)


def _repeat(prometheus: Prometheus, options: argparse.Namespace, answer: _Answer) -> NoReturn:
    """Print a line each time, also while the server does not answer."""
    told = answer.plain()
    while True:
        print(to_json({"time": time.time(), **told}), flush=True)
        time.sleep(options.watch)
        try:
            told = _query(prometheus, options).plain()
        except CommandError as error:
            told = {"error": printable(str(error))}


def _watch(prometheus: Prometheus, options: argparse.Namespace, answer: _Answer) -> int:
    """Show the newest answer, also while the server does not answer."""
    newest = [answer]

    def ask() -> list[Diagnosis]:
        newest[0] = _query(prometheus, options)
        return newest[0].diagnoses

    return watch(ask, answer.diagnoses, options.watch, lambda: newest[0].stack_text())  # noqa: PLW0108 - the newest then


def _stacks(diagnoses: list[Diagnosis], directory: Path) -> dict[tuple[str, int], list[Process]]:
    """Return run and number of each rank that stands still, with what it does; nothing for one of another host."""
    still = {
        (verdict.run, int(verdict.rank))
        for diagnosis in diagnoses
        for verdict in diagnosis.verdicts
        if verdict.alert in _STANDS_STILL and verdict.rank.isdecimal() and len(verdict.rank) <= _DIGITS
    }
    return of_ranks(directory, still)
