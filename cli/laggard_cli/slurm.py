"""``laggard slurm``: what a site with Slurm needs beside the scripts of ``deploy/slurm``.

``targets`` writes the nodes that Slurm knows as targets for Prometheus; ``clean`` is called by the epilog on each node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from laggard.shared import control, dumps, statefile, untrusted
from laggard.shared.environment import HIGHEST_PORT
from laggard.shared.names import run_name
from laggard.shared.statefile import Facts, StateFileError
from laggard_cli.errors import CommandError
from laggard_exporter.web.address import PORT, Address

#: Name, address, partition and state of each node, once for each of its partitions.
_SINFO = ("sinfo", "--Node", "--noheader", "--format=%N|%o|%R|%t")
_SECONDS = 60.0
#: What sinfo says of nodes that are switched off, or just switched on or off: nothing there can be scraped.
_SWITCHED_OFF = re.compile(r"[~#%]$|^futr")

_ENDED = ".ended"
#: A note is a line for each task of the job; it is the user's, who may write anything.
_MOST_OF_A_NOTE = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    targets = actions.add_parser(
        "targets",
        help="write the nodes that Slurm knows to a file of targets",
        description="Write the node exporters of all nodes for Prometheus' file_sd_configs. Where Slurm does not "
        "answer the file stays as it is.",
    )
    targets.epilog = "Example:\n  laggard slurm targets --output /etc/prometheus/laggard-nodes.json"
    targets.add_argument("--output", type=Path, required=True, metavar="FILE", help="where the targets go")
    targets.add_argument(
        "--port", type=int, default=PORT, metavar="NUMBER", help="port of the node exporters (default %(default)s)"
    )
    targets.add_argument(
        "--partition", action="append", metavar="NAME", help="nodes of this partition only; may be repeated"
    )
    targets.set_defaults(action=_targets)
    clean = actions.add_parser(
        "clean",
        help="remove what the ranks of ended jobs left on this node",
        description="Note that a job has ended, and remove what jobs left that ended a while ago. For the epilog.",
    )
    clean.add_argument("--job", required=True, metavar="ID", help="the job that has ended (SLURM_JOB_ID)")
    clean.add_argument("--state-dir", type=Path, required=True, metavar="FOLDER", help="folder of state files")
    clean.add_argument("--jobs", type=Path, required=True, metavar="FOLDER", help="folder of the prolog's notes")
    clean.add_argument(
        "--keep", type=float, default=120.0, metavar="SECONDS", help="how long files stay (default %(default)g)"
    )
    clean.set_defaults(action=_clean)


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    return options.action(options)


class _Node(NamedTuple):
    name: str
    address: str
    partition: str
    state: str


def _targets(options: argparse.Namespace) -> int:
    """Write the file, whole or not at all. Raises :class:`CommandError` where Slurm or the folder refuses."""
    if not 1 <= options.port <= HIGHEST_PORT:
        raise CommandError(f"--port {options.port}: not between 1 and {HIGHEST_PORT}")
    # Partitions that are hidden from this user have nodes too.
    command = [*_SINFO, f"--partition={','.join(options.partition)}" if options.partition else "--all"]
    partitions: dict[tuple[str, str], set[str]] = {}
    for node in _nodes(_answer(command)):
        if not _SWITCHED_OFF.search(node.state):
            partitions.setdefault((node.name, node.address), set()).add(node.partition)
    if not partitions:
        raise CommandError(f"Slurm knows no node ({' '.join(command)}); {options.output} stays as it is")
    groups = [
        {
            "targets": [str(Address(address, options.port))],
            "labels": {
                "__meta_laggard_node": name,
                # Between commas, so that one expression finds a partition wherever it stands.
                "__meta_laggard_partitions": f",{','.join(sorted(of_node))},",
            },
        }
        for (name, address), of_node in sorted(partitions.items())
    ]
    try:
        control.write_atomically(options.output, [json.dumps(groups, indent=1), "\n"])
    except OSError as error:
        raise CommandError(f"{options.output}: {error.strerror}") from error
    print(f"{len(groups)} nodes in {options.output}")
    return 0


def _answer(command: list[str]) -> str:
    """Return what Slurm's command says. Raises :class:`CommandError` with the reason that it gives."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]} is not on PATH: install the client commands of Slurm") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{command[0]} did not answer within {_SECONDS:g} s") from error
    if result.returncode != 0:
        reason = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise CommandError(f"{' '.join(command)}: {reason}")
    return result.stdout


def _nodes(answer: str) -> Iterator[_Node]:
    for line in answer.splitlines():
        fields = line.split("|")
        if len(fields) != len(_Node._fields):
            raise CommandError(f"a line of sinfo must be name, address, partition and state of a node, got {line!r}")
        yield _Node(*fields)


class _Job(NamedTuple):
    """An ended job of this node."""

    note: Path
    user: int
    ended: float
    """Unix time."""
    runs: frozenset[str]
    """Their names without a step."""

    def has(self, run: str) -> bool:
        """Return whether this is a run of the job."""
        return run in self.runs or run.rpartition(".")[0] in self.runs


def _clean(options: argparse.Namespace) -> int:
    """Note the job's end, and remove what the jobs left that ended long enough ago.

    Raises :class:`CommandError` for a folder that is not root's or the caller's own: others could swap what is in it.
    """
    if not re.fullmatch(r"\d+", options.job):
        raise CommandError(f"--job must be a number of a job, got {options.job!r}")
    note: Path = options.jobs / options.job
    now = time.time()
    try:
        _check(options.jobs)
        if note.exists():
            os.utime(note, (now, now), follow_symlinks=False)
            note.replace(note.with_name(f"{note.name}{_ENDED}"))
        over = [job for job in _ended(options.jobs) if job.ended <= now - options.keep]
        if over and options.state_dir.exists():
            _check(options.state_dir)
            _remove(options.state_dir, over)
        for job in over:
            job.note.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{error.filename or options.jobs}: {error.strerror}") from error
    return 0


def _check(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise CommandError(f"{folder} must be a folder; links are not followed")
    if status.st_uid not in (0, os.geteuid()):
        raise CommandError(f"{folder} belongs to user {status.st_uid}, not to root")


def _ended(folder: Path) -> Iterator[_Job]:
    for note in sorted(folder.glob(f"*{_ENDED}")):
        # Only root can put something there; what the note says is its owner's, and concerns only files of this owner.
        with contextlib.suppress(FileNotFoundError), note.open("rb") as file:
            status = os.fstat(file.fileno())
            lines = file.read(_MOST_OF_A_NOTE).decode("utf-8", "replace").splitlines()
            yield _Job(note, status.st_uid, status.st_mtime, frozenset(map(run_name, lines)))


def _remove(folder: Path, jobs: list[_Job]) -> None:
    """Remove the dead state files of these jobs and the other files of the same ranks. No link is followed."""
    directory = untrusted.open_folder(folder)
    try:
        files = dict(_regular_files(directory))
        stems = {job: set[str]() for job in jobs}
        for name, status in files.items():
            if name.endswith(statefile.SUFFIX) and (file := _dead(folder / name)):
                for job in jobs:
                    # Of a job that is queued again on this node the later processes are not over.
                    began = file.start_unix_ns / 1e9
                    if status.st_uid == job.user and began <= job.ended and job.has(file.run):
                        stems[job].add(control.stem(file.run, file.rank))
                        _unlink(name, directory)
        for name, status in files.items():
            for job in jobs:
                if status.st_uid == job.user and status.st_mtime <= job.ended and _is_of(name, stems[job]):
                    _unlink(name, directory)
    finally:
        os.close(directory)


def _regular_files(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield entry.name, status


def _dead(path: Path) -> Facts | None:
    """Return whose state file this is, None where the process lives or the file cannot be used."""
    try:
        file = statefile.read(path)
    except StateFileError:
        return None
    return None if file.alive else file.facts


def _unlink(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # another epilog, or its owner, was faster
        os.unlink(name, dir_fd=directory)


def _is_of(name: str, stems: set[str]) -> bool:
    """Return whether this is a dump of one of these ranks, a trace, a profile, or what it was asked and answered."""
    if name.startswith(dumps.PREFIX) and name.endswith(dumps.SUFFIX):
        return name.removesuffix(dumps.SUFFIX).split("-", 4)[-1] in stems
    return any(name.startswith(f"{stem}.") for stem in stems)
