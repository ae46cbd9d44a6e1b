"""The ranks whose processes live on this host, as their state files say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.shared import statefile
from laggard_cli.errors import CommandError


@dataclass
class LocalRank:
    """One rank on this host."""

    number: int
    state_file: Path
    user: int
    started: int
    pid: int
    """Its process, as this process's namespace numbers it; 0 where it is not visible."""


def local_ranks(directory: Path) -> dict[str, dict[int, LocalRank]]:
    """Return the ranks that live on this host, by run; of two with the same number the newer.

    Raises:
        CommandError: the folder cannot be listed.
    """
    try:
        files = sorted(file for file in directory.iterdir() if file.name.endswith(statefile.SUFFIX))
    except OSError as error:
        raise CommandError(f"state folder {directory}: {error.strerror}; does training run on this host?") from error
    runs: dict[str, dict[int, LocalRank]] = {}
    for file in files:
        try:
            found = statefile.read(file)
            user = file.lstat().st_uid
        except (statefile.StateFileError, OSError):
            continue
        facts = found.facts
        ranks = runs.setdefault(facts.run, {})
        known = ranks.get(facts.rank)
        if found.alive and facts.run and (known is None or known.started < facts.start_boottime_ns):
            ranks[facts.rank] = LocalRank(facts.rank, file, user, facts.start_boottime_ns, found.holder_pid)
    return {name: ranks for name, ranks in runs.items() if ranks}


def choose(directory: Path, name: str | None, numbers: str | None) -> tuple[str, list[LocalRank]]:
    """Return a run of this host and those of its ranks that are asked for.

    Args:
        directory: of the state files.
        name: of the run; may be left out where there is one.
        numbers: of the ranks, as ``0,3``; all of them by default.

    Raises:
        CommandError: there is no such run or rank here, or it is another user's.
    """
    runs = local_ranks(directory)
    here = f"the runs in {directory} are {', '.join(sorted(runs))}" if runs else f"no run is alive in {directory}"
    if name is None:
        if len(runs) != 1:
            raise CommandError(f"--run is needed: {here}")
        (name,) = runs
    if name not in runs:
        raise CommandError(f"--run {name!r} is not on this host: {here}")
    ranks = runs[name]
    wanted = rank_numbers(numbers) if numbers is not None else sorted(ranks)
    absent = [str(number) for number in wanted if number not in ranks]
    if absent:
        there = ", ".join(map(str, sorted(ranks)))
        raise CommandError(f"rank {', '.join(absent)} of {name} is not on this host; here are {there}")
    return name, permitted([ranks[number] for number in wanted])


def rank_numbers(text: str) -> list[int]:
    """Return the ranks that ``--ranks`` names, such as ``0,3``.

    Raises:
        CommandError: they are no numbers.
    """
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise CommandError(f"--ranks must be numbers, got {text!r}; try 0,3") from error


def permitted(ranks: Sequence[LocalRank]) -> list[LocalRank]:
    """Return ranks of this host that this user may ask for something.

    Raises:
        CommandError: one is another user's.
    """
    for rank in ranks:
        if os.geteuid() not in (0, rank.user):
            raise CommandError(f"rank {rank.number} belongs to user {rank.user}; ask as that user or as root")
    return list(ranks)
