"""``laggard diagnose``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from laggard import environment
from laggard_cli.diagnose.model import Diagnosis, diagnose
from laggard_cli.diagnose.view import show
from laggard_cli.prometheus import Prometheus
from laggard_cli.stacks import Process, of_ranks, text
from laggard_cli.terminal import printable

#: Verdicts on a rank whose process lives and does nothing that can be seen.
_STANDS_STILL = ("TrainingStalled", "TrainingRankFrozen")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Example: laggard diagnose --prometheus http://localhost:9090 --run llama-7b-17"
    parser.add_argument("--prometheus", required=True, metavar="URL", help="a server that runs laggard's rules")
    parser.add_argument("--run", dest="name", metavar="RUN", help="one run; by default all that are known now")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="also say where ranks that stand still are in their Python code, if they run on this host; needs py-spy",
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="FOLDER", help="folder of the ranks' state files, for --stacks"
    )


def run(options: argparse.Namespace) -> int:
    """Print the verdicts. The exit code says whether the question was answered, not whether the run is healthy."""
    prometheus = Prometheus(options.prometheus)
    try:
        diagnoses = diagnose(prometheus, options.name)
    finally:
        prometheus.close()
    stacks = _stacks(diagnoses, options.state_dir or environment.state_directory()) if options.stacks else {}
    if options.json:
        print(json.dumps({"runs": [_plain(diagnosis, stacks) for diagnosis in diagnoses]}, indent=2))
    else:
        show(Console(), diagnoses)
        for told in text(stacks):
            print(printable(told))
    return 0


def _stacks(diagnoses: list[Diagnosis], directory: Path) -> dict[tuple[str, int], list[Process]]:
    """Return run and number of each rank that stands still, with what it does; nothing for one of another host."""
    still = {
        (verdict.run, int(verdict.rank))
        for diagnosis in diagnoses
        for verdict in diagnosis.verdicts
        if verdict.alert in _STANDS_STILL and verdict.rank.isdecimal()
    }
    return of_ranks(directory, still)


def _plain(diagnosis: Diagnosis, stacks: dict[tuple[str, int], list[Process]]) -> dict[str, Any]:
    plain = {**asdict(diagnosis), "missing": list(diagnosis.missing)}
    of_run = {rank: list(map(asdict, each)) for (name, rank), each in stacks.items() if name == diagnosis.run}
    return {**plain, "stacks": of_run} if stacks else plain
