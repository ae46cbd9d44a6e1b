"""Asks ranks that run on this host for files through their control files, and waits for the answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from laggard.shared import control, statefile
from laggard.shared.control import ControlError, Request
from laggard_cli.errors import CommandError
from laggard_cli.local import LocalRank

_POLL_SECONDS = 0.2
#: A rank looks for requests once a second; one that takes none for so long has no laggard that listens.
_ACCEPT_SECONDS = 20.0


@dataclass
class _Asked(LocalRank):
    """One rank on this host, and what has become of its file."""

    request: Request
    accepted: bool = False


def ask(
    kind: Literal["trace", "profile"],
    run: str,
    ranks: Sequence[LocalRank],
    *,
    directory: Path,
    output: Path,
    steps: int,
    seconds: float,
) -> dict[int, Path]:
    """Ask ranks for a file each, and print what becomes of it.

    Args:
        kind: what is asked for.
        run: the ranks' run.
        ranks: on this host.
        directory: the state folder, through which they are asked.
        output: the folder that they write to.
        steps: of a profile.
        seconds: how long to wait.

    Returns:
        The files by rank; a rank that gave none is missing.

    Raises:
        CommandError: the state folder cannot be written.
    """
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    asked: list[_Asked] = []
    try:
        for rank in ranks:
            stem = control.stem(run, rank.number)
            target = output / f"{stem}.{moment}.{kind}.json"
            asked.append(_Asked(**vars(rank), request=Request(control.new_id(), kind, str(target), steps)))
            try:
                control.write(directory / f"{stem}{control.REQUEST_SUFFIX}", asked[-1].request)
            except OSError as error:
                raise CommandError(f"state folder {directory}: {error.strerror}") from error
        numbers = ", ".join(str(rank.number) for rank in ranks)
        amount = f"{steps} steps" if kind == "profile" else "the last steps"
        print(f"asked rank {numbers} of {run} for {amount}", flush=True)
        return _wait(directory, run, asked, seconds)
    finally:
        for rank in asked:
            for suffix in (control.REQUEST_SUFFIX, control.REPLY_SUFFIX):
                # The reply of a rank of another user stays: its folder lets only the owner remove it.
                with contextlib.suppress(OSError):
                    (directory / f"{control.stem(run, rank.number)}{suffix}").unlink()


def _wait(directory: Path, run: str, ranks: Sequence[_Asked], seconds: float) -> dict[int, Path]:
    began = time.monotonic()
    waiting = list(ranks)
    found: dict[int, Path] = {}
    while waiting:
        passed = time.monotonic() - began
        for rank in list(waiting):
            kind, target = rank.request.request, Path(rank.request.path)
            reason = _news(directory, run, rank)
            if reason is None and passed > (seconds if rank.accepted else min(_ACCEPT_SECONDS, seconds)):
                reason = f"no {kind} after {passed:.0f} s" if rank.accepted else "does not answer"
            if reason is not None:
                waiting.remove(rank)
                if not reason:
                    found[rank.number] = target
                print(f"rank {rank.number}: {reason or target}", flush=True)
        if waiting:
            time.sleep(_POLL_SECONDS)
    return found


def _news(directory: Path, run: str, rank: _Asked) -> str | None:
    """Return ``None`` while there is nothing to say, an empty string for a file, or why there is none."""
    kind = rank.request.request
    try:
        reply = control.read_reply(directory / f"{control.stem(run, rank.number)}{control.REPLY_SUFFIX}", rank.user)
    except ControlError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            return str(error)
        reply = None
    if reply is not None and reply.id == rank.request.id:
        if reply.status == "accepted" and not rank.accepted:
            rank.accepted = True
            if kind == "profile":
                print(f"rank {rank.number}: profiles its next steps", flush=True)
        if reply.status != "accepted":
            return reply.reason
    try:
        alive = statefile.read(rank.state_file).alive
    except statefile.StateFileError:
        alive = False
    return None if alive else f"ended before its {kind} was there"
