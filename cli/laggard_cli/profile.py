"""``laggard profile``: asks ranks that run on this host for a profile by torch's profiler, and waits for the files."""

from __future__ import annotations

import argparse
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from laggard import control, environment, statefile
from laggard.control import MAX_STEPS, ControlError, Request
from laggard_cli.errors import CommandError
from laggard_cli.local import LocalRank, choose

_POLL_SECONDS = 0.2
#: A rank looks for requests once a second; one that takes none for so long has no laggard that listens.
_ACCEPT_SECONDS = 20.0


@dataclass
class _Rank(LocalRank):
    """One rank on this host, and what has become of its profile."""

    request: Request | None = None
    target: Path = Path()
    accepted: bool = False


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
    name, chosen = choose(directory, options.name, options.ranks)
    ranks = [_Rank(**vars(rank)) for rank in chosen]
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    try:
        for rank in ranks:
            stem = control.stem(name, rank.number)
            rank.target = output / f"{stem}.{moment}.profile.json"
            rank.request = Request(control.new_id(), "profile", str(rank.target), options.steps)
            try:
                control.write(directory / f"{stem}{control.REQUEST_SUFFIX}", rank.request)
            except OSError as error:
                raise CommandError(f"state folder {directory}: {error.strerror}") from error
        asked = ", ".join(str(rank.number) for rank in ranks)
        print(f"asked rank {asked} of {name} for {options.steps} steps", flush=True)
        return _wait(directory, name, ranks, options.timeout)
    finally:
        for rank in ranks:
            for suffix in (control.REQUEST_SUFFIX, control.REPLY_SUFFIX):
                # The reply of a rank of another user stays: its folder lets only the owner remove it.
                with contextlib.suppress(OSError):
                    (directory / f"{control.stem(name, rank.number)}{suffix}").unlink()


def _wait(directory: Path, name: str, ranks: list[_Rank], seconds: float) -> int:
    began = time.monotonic()
    waiting = list(ranks)
    failed = False
    while waiting:
        passed = time.monotonic() - began
        for rank in list(waiting):
            reason = _news(directory, name, rank)
            if reason is None and passed > (seconds if rank.accepted else min(_ACCEPT_SECONDS, seconds)):
                reason = f"no profile after {passed:.0f} s" if rank.accepted else "does not answer"
            if reason is not None:
                waiting.remove(rank)
                failed |= bool(reason)
                print(f"rank {rank.number}: {reason or rank.target}", flush=True)
        if waiting:
            time.sleep(_POLL_SECONDS)
    return int(failed)


def _news(directory: Path, name: str, rank: _Rank) -> str | None:
    """Return ``None`` while there is nothing to say, an empty string for a profile, or why there is none."""
    try:
        reply = control.read_reply(directory / f"{control.stem(name, rank.number)}{control.REPLY_SUFFIX}", rank.user)
    except ControlError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            return str(error)
        reply = None
    if reply is not None and rank.request is not None and reply.id == rank.request.id:
        if reply.status == "accepted" and not rank.accepted:
            rank.accepted = True
            print(f"rank {rank.number}: profiles its next steps", flush=True)
        if reply.status != "accepted":
            return reply.reason
    try:
        alive = statefile.read(rank.state_file).alive
    except statefile.StateFileError:
        alive = False
    return None if alive else "ended before its profile was there"
