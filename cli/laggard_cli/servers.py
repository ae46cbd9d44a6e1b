"""Which server a command asks, where nothing names it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from laggard_cli.errors import CommandError
from laggard_cli.folders import add_folder, say_once
from laggard_cli.labels import add_labels, parse_names
from laggard_cli.live import live_run
from laggard_cli.prometheus import DEFAULT, VARIABLE, Prometheus


def add_server(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the arguments that say which server is asked, and how it is reached."""
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help=f"{text} (default ${VARIABLE}, else that of the newest running laggard run --local, else {DEFAULT})",
    )
    add_folder(parser)
    parser.add_argument(
        "--http.config.file",
        dest="http_config",
        type=Path,
        metavar="FILE",
        help="password, token, certificates or headers for the server, in the form that promtool takes",
    )
    add_labels(parser, "another name for a label, as the rules were rendered with, for example cluster=k8s_cluster")


def is_named(options: argparse.Namespace) -> bool:
    """Return whether a person named a server: by its address, in the environment or by a local run's folder."""
    return options.prometheus is not None or options.local_folder is not None or bool(os.environ.get(VARIABLE))


def address(options: argparse.Namespace) -> tuple[str, str]:
    """Return the server that is asked, and what named it.

    Raises:
        CommandError: ``--folder`` names no run at work, or beside ``--prometheus``.
    """
    if options.prometheus is not None:
        if options.local_folder is not None:
            raise CommandError("--prometheus and --folder each name a server; give one of them")
        return options.prometheus, "--prometheus"
    if options.local_folder is None and (named := os.environ.get(VARIABLE)):
        return named, VARIABLE
    run = live_run(options.local_folder)
    return (DEFAULT, VARIABLE) if run is None else (run.prometheus, str(run))


def connect(options: argparse.Namespace) -> Prometheus:
    """Return the server that the arguments of :func:`add_server` name, or what stands in for them; say which run's."""
    url, source = address(options)
    if source not in ("--prometheus", VARIABLE):
        say_once(options, f"asks the local run {source}")
    return Prometheus(url, options.http_config, parse_names(options.label), source)
