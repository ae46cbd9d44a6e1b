"""Problems in words: what is wrong, since when, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from laggard_cli.past.times import form
from laggard_cli.report.costs import Cost, concerned
from laggard_cli.report.history import GROUP, HOST, RANK, History, number
from laggard_cli.report.verdicts import Problem

#: Names in one line.
_MOST_NAMES, _MOST_RANGES = 4, 8


def clock(at: float) -> str:
    """Return the time of day, in UTC."""
    return form(at, "%H:%M:%S")


def who(problem: Problem) -> str:
    """Return whom a problem concerns and where that is, empty for the run as a whole."""
    hosts = problem.members(HOST)
    return f"{short(problem)} on {hosts[0]}" if problem.members(RANK) and len(hosts) == 1 else short(problem)


def short(problem: Problem) -> str:
    """Return whom a problem concerns, without the host of a rank."""
    ranks, hosts = problem.members(RANK), problem.members(HOST)
    if ranks:
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {numbers(ranks)}"
    if hosts:
        more = " and others" if len(hosts) > _MOST_NAMES else ""
        return f"host {hosts[0]}" if len(hosts) == 1 else f"hosts {', '.join(hosts[:_MOST_NAMES])}{more}"
    groups = problem.members(GROUP)
    return f"peer group {', '.join(groups)}" if groups else ""


def numbers(ranks: Sequence[str]) -> str:
    """Return numbers of ranks, in ranges where they follow each other."""
    parts: list[list[str]] = []
    for rank in ranks:
        before = number(parts[-1][-1]) if parts else None
        if before is not None and number(rank) == before + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    shown = [part[0] if len(part) == 1 else f"{part[0]}\u2013{part[-1]}" for part in parts]
    more = f" and {len(shown) - _MOST_RANGES} more" if len(shown) > _MOST_RANGES else ""
    return ", ".join(shown[:_MOST_RANGES]) + more


def wrong(problem: Problem) -> str:
    """Return what is wrong, without a time: what the alert says of the worst, and of whom it says the same."""
    if not problem.summary:
        named, title = who(problem), problem.title.rstrip(".") or problem.alert
        # An abbreviation stays as it is.
        small = title if title[1:2].isupper() else f"{title[:1].lower()}{title[1:]}"
        if problem.phase not in ("", "mixed"):
            named = f"{named}, phase {problem.phase}" if named else f"phase {problem.phase}"
        return f"{_capital(named)}: {small}" if named else title
    others = replace(problem, firings=[each for each in problem.firings if not _same(each.labels, problem.worst)])
    more = short(others)
    return f"{problem.summary.rstrip('.')}; the same of {more}" if more else problem.summary.rstrip(".")


def _same(labels: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Say whether two firings are about the same rank, else host, else peer group: a rank's host may be known later."""
    told = next((name for name in (RANK, HOST, GROUP) if name in labels or name in others), RANK)
    return labels.get(told) == others.get(told)


def sentence(problem: Problem, found: Cost | None) -> str:
    """Return what is wrong, since when, and what it costs, in one line."""
    when = (
        f"since {clock(problem.begin)} UTC"
        if problem.lasts
        else f"from {clock(problem.begin)} to {clock(problem.end)} UTC"
    )
    costs = f", costs {found.said}" if found else ""
    return f"{wrong(problem)} ({when}{costs})"


def suspects(history: History, problems: Iterable[Problem]) -> set[int]:
    """Return the rows of ranks that a verdict above info names, unless it names them all."""
    rows: set[int] = set()
    for problem in problems:
        named = concerned(history, problem)
        if problem.severity != "info" and len(named) < len(history.ranks):
            rows |= set(named)
    return rows


def _capital(said: str) -> str:
    return said[:1].upper() + said[1:]
