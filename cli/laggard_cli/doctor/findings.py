"""What is found, and how it is shown: the result first, then what does not work, what is not known, what works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

FAULT, UNKNOWN, WORKS = "fault", "unknown", "works"

#: How many things of a kind are named.
_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    status: str
    detail: str
    #: What to do; empty where nothing is wrong.
    do: str = ""


#: In which what is found of a check begins.
COLUMN = 22


def some(things: Iterable[str]) -> str:
    """Return the first few things, and how many more there are."""
    found = list(things)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"


def count(number: int, thing: str) -> str:
    """Return a number and a thing, in the plural where it must be."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def summary(findings: Sequence[Finding]) -> str:
    """Return the result in a few words."""
    faults, unknown = (sum(each.status == status for each in findings) for status in (FAULT, UNKNOWN))
    parts = [count(faults, "fault") if faults else "no fault found"]
    if unknown:
        parts.append(f"{count(unknown, 'check')} without an answer")
    return ", ".join(parts)


def lines(server: str, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines for a terminal."""
    yield f"{server}: {summary(findings)}"
    for status in (FAULT, UNKNOWN, WORKS):
        group = [each for each in findings if each.status == status]
        if group:
            yield ""
        for each in group:
            yield f"  {status:<7}  {each.check:<9}  {each.detail}"
            if each.do:
                yield f"  {'':<7}  {'do':<9}  {each.do}"


def plain(server: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the same for JSON."""
    return {
        "server": server,
        "ok": all(each.status != FAULT for each in findings),
        "summary": summary(findings),
        "findings": [asdict(each) for each in findings],
    }
