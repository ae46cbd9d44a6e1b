"""What a saved answer of NCCL's RAS service says beside the dumps: evidence, never a verdict."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laggard.shared import untrusted
from laggard_exporter.hang.verdict import ranks_as_text
from laggard_exporter.ras.answer import MAX_BYTES, Answer, RasError, parse
from laggard_exporter.ras.facts import Facts, facts

#: How an answer begins, after lines of the protocol.
_BEGINS = re.compile(rb'(?:(?:SERVER PROTOCOL \d+|OK)\r?\n)*\{\s*"nccl_version"')
_BEGINNING = 512


@dataclass(frozen=True)
class Saved:
    """The newest answer of a folder, and what it says of a job of this size."""

    name: str
    answer: Answer
    ranks: int

    @property
    def facts(self) -> Facts:
        """What the answer says, with ranks as a communicator over all of them numbers them."""
        return facts(self.answer, self.ranks, {})


def is_answer(path: Path) -> bool:
    """Return whether a file begins as an answer does. Raises :class:`OSError`."""
    with os.fdopen(untrusted.open_file(path), "rb") as file:
        return _BEGINS.match(file.read(_BEGINNING)) is not None


def newest(paths: list[Path], ranks: int | None, left_out: dict[str, str]) -> Saved | None:
    """Return the newest answer that can be read, and add to ``left_out`` why others are not.

    ``ranks`` are those of the job; without it, those of the largest communicator.
    """
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            with os.fdopen(untrusted.open_file(path), "rb") as file:
                answer = parse(file.read(MAX_BYTES + 1))
        except (OSError, RasError) as error:
            left_out[path.name] = str(error)
            continue
        for other in paths:
            if other != path:
                left_out.setdefault(other.name, "there is a newer answer of NCCL RAS")
        return Saved(path.name, answer, ranks or max((each.size for each in answer.communicators), default=0))
    return None


def lines(saved: Saved, shown: int) -> Iterator[str]:
    """Yield what a person reads, of at most this number of groups of ranks."""
    found = saved.facts
    yield f"NCCL RAS ({saved.name}, NCCL {saved.answer.version}, {saved.answer.time}):"
    told = [*_missing(found), *_behind(found)]
    yield from (f"  {line}" for line in told[:shown])
    if len(told) > shown:
        yield f"  and {len(told) - shown} more"
    if found.unnamed:
        yield f"  {found.unnamed} more behind, of unknown rank: no communicator is over all {saved.ranks} ranks"
    if found.partial:
        all_of_them = len(saved.answer.communicators)
        yield f"  not compared, for lack of answers or common calls: {found.partial} of {all_of_them} communicators"
    if not told and not found.unnamed:
        yield "  no rank stands out; equal counts prove nothing"


def plain(saved: Saved) -> dict[str, Any]:
    """Return the same for a program."""
    found = saved.facts
    return {
        "file": saved.name,
        "nccl_version": saved.answer.version,
        "time": saved.answer.time,
        "missing": [{"rank": each.rank, "dead": each.dead} for each in found.missing],
        "behind": [each._asdict() for each in found.behind],
        "unnamed": found.unnamed,
        "partial": found.partial,
    }


def _missing(found: Facts) -> Iterator[str]:
    for dead, what in ((False, "not answering"), (True, "given up after a minute without an answer")):
        if ranks := [each.rank for each in found.missing if each.dead == dead]:
            yield f"{ranks_as_text(ranks)}: {what}"


def _behind(found: Facts) -> Iterator[str]:
    groups: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
    for each in found.behind:
        groups[each.communicator, each.issued, each.most].append(each.rank)
    for (communicator, issued, most), ranks in groups.items():
        name = communicator.partition(" ")[0]
        yield f"{ranks_as_text(ranks)}: at collective {issued} of communicator {name}, another member at {most}"
