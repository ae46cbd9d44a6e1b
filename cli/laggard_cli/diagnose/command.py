"""``laggard diagnose``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from rich.console import Console

from laggard_cli.diagnose.model import Diagnosis, diagnose
from laggard_cli.diagnose.view import show
from laggard_cli.prometheus import Prometheus


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Example: laggard diagnose --prometheus http://localhost:9090 --run llama-7b-17"
    parser.add_argument("--prometheus", required=True, metavar="URL", help="a server that runs laggard's rules")
    parser.add_argument("--run", dest="name", metavar="RUN", help="one run; by default all that are known now")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the verdicts. The exit code says whether the question was answered, not whether the run is healthy."""
    prometheus = Prometheus(options.prometheus)
    try:
        diagnoses = diagnose(prometheus, options.name)
    finally:
        prometheus.close()
    if options.json:
        print(json.dumps({"runs": [_plain(diagnosis) for diagnosis in diagnoses]}, indent=2))
    else:
        show(Console(), diagnoses)
    return 0


def _plain(diagnosis: Diagnosis) -> dict[str, Any]:
    return {**asdict(diagnosis), "missing": list(diagnosis.missing)}
