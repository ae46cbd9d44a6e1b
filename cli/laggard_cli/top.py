"""``laggard top``: a run as it is now, again and again, on the whole terminal."""

from __future__ import annotations

import argparse

from laggard_cli.clusters import add_cluster
from laggard_cli.diagnose.command import run as diagnose
from laggard_cli.diagnose.watch import KEYS
from laggard_cli.servers import add_server


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = f"Example:\n  laggard top --run llama-7b-17\nKeys: {KEYS}"
    add_server(parser, "a server that runs laggard's rules")
    parser.add_argument("--run", dest="name", metavar="RUN", help="one run; by default all that are known now")
    add_cluster(parser, "runs of one cluster, by the label of the series; by default of all")
    parser.add_argument("--every", default="5s", metavar="DURATION", help="time between answers (default %(default)s)")
    parser.set_defaults(at=None, json=False, stacks=False, state_dir=None)


def run(options: argparse.Namespace) -> int:
    """Show the run until ``q`` or Ctrl-C."""
    options.watch = options.every
    return diagnose(options)
