"""In which folder a command looks for ranks of this host, where nothing names it. No package of an extra is needed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from laggard.shared import environment
from laggard_cli.live import LiveRun, live_run
from laggard_cli.local import local_ranks
from laggard_cli.terminal import printable


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a local run."""
    parser.add_argument(
        "--folder",
        dest="local_folder",
        type=Path,
        metavar="FOLDER",
        help="the folder of a running laggard run --local, or the one around it",
    )


def state_directory(options: argparse.Namespace) -> Path:
    """Return the folder of the state files of ranks on this host: the named one, else where ranks live.

    Raises:
        CommandError: ``--folder`` names no run at work.
    """
    given: Path | None = options.state_dir
    folder: Path | None = getattr(options, "local_folder", None)
    usual = environment.state_directory()
    if given is not None:
        return given
    run: LiveRun | None = live_run(folder)
    if run is None or (folder is None and (environment.text(environment.LAGGARD_STATE_DIR) or _lives(usual))):
        return usual
    if getattr(options, "prometheus", None) is None:
        say_once(options, f"looks at the local run {run}")
    return Path(run.state_directory)


def say_once(options: argparse.Namespace, text: str) -> None:
    """Say once which run was taken."""
    if not getattr(options, "said", False):
        options.said = True
        print(printable(f"laggard: {text}"), file=sys.stderr, flush=True)


def _lives(directory: Path) -> bool:
    return directory.is_dir() and bool(local_ranks(directory))
