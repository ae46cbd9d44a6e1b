"""Asks ranks that run on this host for files through their control files, and waits for the answers."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from laggard.shared import control, statefile
from laggard.shared.control import ControlError, Request
from laggard_cli.errors import CommandError
from laggard_cli.local import LocalRank, spans
from laggard_cli.progress import Progress

_POLL_SECONDS = 0.2
#: A rank looks for requests once a second; one that takes none for so long has no laggard that listens.
_ACCEPT_SECONDS = 20.0
#: A rank whose last step ended so long ago is said to stand still, once it has been waited for as long as the second.
_STILL_SECONDS, _PATIENT_SECONDS = 30.0, 5.0
#: Ranks on the line that says what is waited for.
_SHOWN = 4


@dataclass
class _Asked(LocalRank):
    """One rank on this host, and what has become of its file."""

    request: Request
    accepted: bool = False
    #: Steps that it had made when it took the request.
    steps_before: int = 0
    #: Steps that it has made since.
    steps: int = 0
    #: Seconds since its last step.
    still: float = 0.0
    said_still: bool = False


def ask(
    kind: Literal["trace", "profile"],
    run: str,
    ranks: Sequence[LocalRank],
    *,
    directory: Path,
    output: Path,
    steps: int,
    seconds: float,
    stacks: bool = False,
    progress: Progress | None = None,
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
        stacks: whether a profile has Python functions in it.
        progress: what says how it goes; one of its own by default.

    Returns:
        The files by rank; a rank that gave none is missing. Where this is interrupted, or given up, a rank drops its
        profile: the request stands while its file does.

    Raises:
        CommandError: the state folder cannot be written.
    """
    progress = progress or Progress()
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    asked: list[_Asked] = []
    try:
        for rank in ranks:
            stem = control.stem(run, rank.number)
            target = output / f"{stem}.{moment}.{kind}.json"
            asked.append(_Asked(**vars(rank), request=Request(control.new_id(), kind, str(target), steps, stacks)))
            try:
                control.write(directory / f"{stem}{control.REQUEST_SUFFIX}", asked[-1].request)
            except OSError as error:
                raise CommandError(f"state folder {directory}: {error.strerror}") from error
        numbers = spans([rank.number for rank in ranks])
        amount = f"{steps} steps" if kind == "profile" else "the last steps"
        plural = "s" * (len(ranks) > 1)
        progress.result(f"asked rank{plural} {numbers} of {run} for {amount}")
        return _wait(directory, run, asked, seconds, progress)
    finally:
        progress.end()
        for rank in asked:
            for suffix in (control.REQUEST_SUFFIX, control.REPLY_SUFFIX):
                # The reply of a rank of another user stays: its folder lets only the owner remove it.
                with contextlib.suppress(OSError):
                    (directory / f"{control.stem(run, rank.number)}{suffix}").unlink()


def _wait(directory: Path, run: str, ranks: Sequence[_Asked], seconds: float, progress: Progress) -> dict[int, Path]:
    began = time.monotonic()
    waiting = list(ranks)
    found: dict[int, Path] = {}
    while waiting:
        passed = time.monotonic() - began
        for rank in list(waiting):
            kind, target = rank.request.request, Path(rank.request.path)
            reason = _news(directory, run, rank, progress)
            if reason is None and passed > (seconds if rank.accepted else min(_ACCEPT_SECONDS, seconds)):
                reason = f"no {kind} after {passed:.0f} s" if rank.accepted else "does not answer"
            if reason is not None:
                waiting.remove(rank)
                if not reason:
                    found[rank.number] = target
                progress.result(f"rank {rank.number}: {reason or target}")
            elif (
                kind == "profile" and passed > _PATIENT_SECONDS and rank.still > _STILL_SECONDS and not rank.said_still
            ):
                rank.said_still = True
                progress.result(
                    f"rank {rank.number}: no step has ended for {rank.still:.0f} s; "
                    f"laggard stacks --run {shlex.quote(run)} --ranks {rank.number} shows where it stands"
                )
        if waiting:
            progress.waits(f"{', '.join(map(_state, waiting[:_SHOWN]))}{'…' * (len(waiting) > _SHOWN)}; {passed:.0f} s")
            time.sleep(_POLL_SECONDS)
    return found


def _state(rank: _Asked) -> str:
    if not rank.accepted:
        return f"rank {rank.number} is asked"
    if rank.request.request == "trace":
        return f"rank {rank.number} writes"
    # With several updates in a step it is through before.
    done = min(rank.steps, rank.request.steps)
    return f"rank {rank.number}: {done} of {rank.request.steps} steps" + ", writes" * (done == rank.request.steps)


def _news(directory: Path, run: str, rank: _Asked, progress: Progress) -> str | None:
    """Return ``None`` while there is nothing to say, an empty string for a file, or why there is none."""
    kind = rank.request.request
    alive = _look(rank)
    try:
        reply = control.read_reply(directory / f"{control.stem(run, rank.number)}{control.REPLY_SUFFIX}", rank.user)
    except ControlError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            return str(error)
        reply = None
    if reply is not None and reply.id == rank.request.id:
        if reply.status == "accepted" and not rank.accepted:
            rank.accepted, rank.steps_before, rank.steps = True, rank.steps_before + rank.steps, 0
            if kind == "profile":
                progress.result(f"rank {rank.number}: profiles its next steps")
        if reply.status != "accepted":
            return reply.reason
    return None if alive else f"ended before its {kind} was there"


def _look(rank: _Asked) -> bool:
    """Take note of the steps that a rank has made; return whether it lives."""
    try:
        found = statefile.read(rank.state_file)
    except statefile.StateFileError:
        return False
    rank.steps = max(found.steps - rank.steps_before, 0)
    rank.still = (statefile.boottime_ns() - found.last_step_ns) / 1e9 if found.last_step_ns else 0.0
    return found.alive
