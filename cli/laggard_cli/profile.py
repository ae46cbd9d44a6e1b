"""``laggard profile``: asks ranks that run on this host for a profile by torch's profiler, and waits for the files."""

from __future__ import annotations

import argparse
from pathlib import Path

from laggard import environment
from laggard.control import MAX_STEPS
from laggard_cli.asking import ask
from laggard_cli.errors import CommandError
from laggard_cli.local import choose


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Example: laggard profile --run pretrain-7 --ranks 0,3 --steps 5 --output /data/profiles"
    parser.add_argument("--run", dest="name", metavar="NAME", help="the run; may be left out where one run is here")
    parser.add_argument("--ranks", metavar="R,R…", help="the ranks, for example 0,3 (default: all on this host)")
    parser.add_argument("--steps", type=int, default=5, help="steps to profile (default %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the ranks write (default: state folder)")
    parser.add_argument("--state-dir", type=Path, metavar="FOLDER", help="folder of the ranks' state files")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="how long to wait (default 300)")


def run(options: argparse.Namespace) -> int:
    """Write the requests, follow the replies, and return 1 where a rank gave no profile."""
    if not 1 <= options.steps <= MAX_STEPS:
        raise CommandError(f"--steps {options.steps} is not 1 to {MAX_STEPS}")
    directory: Path = options.state_dir or environment.state_directory()
    output: Path = (options.output or directory).absolute()
    if not output.is_dir():
        raise CommandError(f"--output {output} is no folder")
    name, ranks = choose(directory, options.name, options.ranks)
    found = ask(
        "profile", name, ranks, directory=directory, output=output, steps=options.steps, seconds=options.timeout
    )
    return int(len(found) < len(ranks))
