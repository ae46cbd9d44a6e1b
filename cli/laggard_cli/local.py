"""The ranks whose processes live on this host, as their state files say."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.shared import statefile
from laggard_cli.errors import CommandError
from laggard_cli.nearby import did_you_mean, listed

_SPAN = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
#: More than any run has; a typing error must not fill the memory.
_MOST_RANKS = 1_000_000


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
    here = f"the runs in {directory} are {listed(runs)}" if runs else f"no run is alive in {directory}"
    if name is None:
        if len(runs) != 1:
            raise CommandError(f"--run is needed: {here}")
        (name,) = runs
    if name not in runs:
        raise CommandError(f"--run {name!r} is not on this host: {here}{did_you_mean(name, runs)}")
    ranks = runs[name]
    wanted = rank_numbers(numbers) if numbers is not None else sorted(ranks)
    absent = [number for number in wanted if number not in ranks]
    if absent:
        # Who counts from 1 asks for one more than there is.
        near = f"; ranks count from 0: did you mean {max(ranks)}?" if absent == [max(ranks) + 1] else ""
        raise CommandError(f"rank {spans(absent)} of {name} is not on this host; here are {spans(sorted(ranks))}{near}")
    return name, permitted([ranks[number] for number in wanted])


def rank_numbers(text: str) -> list[int]:
    """Return the ranks that ``--ranks`` names, such as ``0,3`` or ``0-7,12``.

    Raises:
        CommandError: they are no numbers.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _SPAN.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < _MOST_RANKS:
            digits = re.fullmatch(r"(?:rank|r)[ _-]?(\d+)", part.strip(), re.IGNORECASE)
            hint = f"did you mean {digits[1]}?" if digits else "try 0,3 or 0-7"
            raise CommandError(f"--ranks must be numbers, got {text!r}; {hint}")
        found.update(range(first, last + 1))
    return sorted(found)


def spans(numbers: Sequence[int]) -> str:
    """Return increasing numbers of ranks as a person writes them: ``0, 1, 4-7``; three and more in a row as one."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    few = 2
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > few else ", ".join(map(str, row)) for row in rows)


def permitted(ranks: Sequence[LocalRank]) -> list[LocalRank]:
    """Return ranks of this host that this user may ask for something.

    Raises:
        CommandError: one is another user's.
    """
    for rank in ranks:
        if os.geteuid() not in (0, rank.user):
            raise CommandError(f"rank {rank.number} belongs to user {rank.user}; ask as that user or as root")
    return list(ranks)
