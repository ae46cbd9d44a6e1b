"""The command line, in the style of node_exporter. Bad input is one line that says what to do, and exit code 2."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from laggard import environment
from laggard.version import __version__
from laggard_exporter.server import Address, parse_address

PROGRAM = "laggard-exporter"
DEFAULT_ADDRESS = "localhost:9495"
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Options:
    """What the command line says, checked."""

    addresses: tuple[Address, ...]
    telemetry_path: str
    state_directory: Path
    kernel_log: Path
    collectors: tuple[str, ...]
    """Names of the collectors that are on."""
    log_level: str


def reject(problem: str) -> NoReturn:
    """End the process with one line about bad input. Raises :class:`SystemExit` with code 2."""
    print(f"{PROGRAM}: error: {problem}", file=sys.stderr)  # noqa: T201 - the console is where a user looks
    raise SystemExit(2)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        reject(message)


def parse(arguments: Sequence[str] | None, collectors: Iterable[str]) -> Options:
    """Return the options. ``collectors`` are the names of those that exist.

    Raises :class:`SystemExit` with code 2 for bad input, and with code 0 for ``--help`` and ``--version``.
    """
    known = tuple(collectors)
    parser = _parser(known)
    values, unknown = parser.parse_known_args(arguments)
    if unknown:
        reject(_unknown(unknown[0], known))
    options = vars(values)
    directory: Path = options["state.directory"] or environment.state_directory()
    if problem := _directory_problem(directory):
        reject(problem)
    return Options(
        addresses=tuple(options["web.listen-address"] or [parse_address(DEFAULT_ADDRESS)]),
        telemetry_path=options["web.telemetry-path"],
        state_directory=directory,
        kernel_log=options["nvml.kernel-log"],
        collectors=tuple(name for name in known if options[f"collector.{name}"]),
        log_level=options["log.level"],
    )


def _parser(collectors: tuple[str, ...]) -> _Parser:
    parser = _Parser(
        prog=PROGRAM, description="Exports a node's GPUs and training ranks to Prometheus.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument(
        "--web.listen-address",
        dest="web.listen-address",
        action="append",
        type=_address,
        metavar="HOST:PORT",
        help=f"address to serve on; may be repeated; :PORT is every address of the node (default {DEFAULT_ADDRESS})",
    )
    parser.add_argument(
        "--web.telemetry-path",
        dest="web.telemetry-path",
        type=_path,
        default="/metrics",
        metavar="PATH",
        help="path of the metrics (default %(default)s)",
    )
    parser.add_argument(
        "--state.directory",
        dest="state.directory",
        type=_directory,
        metavar="FOLDER",
        help=f"folder of the state files (default {environment.LAGGARD_STATE_DIR}, else laggard in shared memory)",
    )
    parser.add_argument(
        "--nvml.kernel-log",
        dest="nvml.kernel-log",
        type=Path,
        default=Path("/dev/kmsg"),
        metavar="FILE",
        help="kernel log in which XID errors are found (default %(default)s)",
    )
    for name in collectors:
        parser.add_argument(
            f"--collector.{name}",
            dest=f"collector.{name}",
            action=argparse.BooleanOptionalAction,
            default=True,
            help=f"switch the collector {name} on or off (default on)",
        )
    parser.add_argument(
        "--log.level", dest="log.level", choices=LOG_LEVELS, default="info", help="what to log (default %(default)s)"
    )
    return parser


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _path(text: str) -> str:
    if not text.startswith("/") or text == "/" or text.startswith("/-/"):
        raise argparse.ArgumentTypeError(f"{text!r} can not be served; give a path such as /metrics")
    return text


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("is empty; name the folder that the ranks write to")
    return Path(text)


def _unknown(argument: str, collectors: tuple[str, ...]) -> str:
    flag = argument.partition("=")[0]
    for prefix in ("--collector.", "--no-collector."):
        if flag.startswith(prefix):
            return f"{flag}: no collector {flag.removeprefix(prefix)!r}; there are {', '.join(collectors)}"
    return f"unknown argument {argument!r}; {PROGRAM} --help lists all"


def _directory_problem(directory: Path) -> str | None:
    name = f"--state.directory (or {environment.LAGGARD_STATE_DIR}) {str(directory)!r}"
    try:
        mode = os.lstat(directory).st_mode
    except FileNotFoundError:
        return None  # normal: the first rank makes it
    except OSError as error:
        return f"{name}: {error.strerror}; name the folder that the ranks write to"
    if not stat.S_ISDIR(mode):
        return f"{name} is not a folder; name the one that the ranks write to (symbolic links are not followed)"
    return None
