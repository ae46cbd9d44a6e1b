"""Problems in words: what is wrong, since when, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laggard_cli.past.times import form
from laggard_cli.report.costs import Cost, concerned
from laggard_cli.report.history import HOST, KIND, RANK, History, number
from laggard_cli.report.verdicts import Problem

#: What is wrong, in the words of somebody who tells a colleague; other alerts are told by the rule's own title.
_PHRASES = {
    "TrainingStraggler": "{Who} {is_} slow in {phase}",
    "TrainingNodeSlow": "{Who} {is_} slow: most of its ranks make the others wait",
    "TrainingStageSlow": "{Who} holds up the others",
    "TrainingStalled": "The run stands still: the others wait for {who}",
    "TrainingRankMissing": "{Who} {is_} gone while others work on",
    "TrainingRankDied": "The process of {who} died",
    "TrainingRunFailed": "The run has been down, {who} ended first,",
    "TrainingRankFrozen": "No progress of {who} while others go on",
    "TrainingInputBound": "All ranks wait for data",
    "TrainingCommunicationBound": "The transfer between ranks is the slowest part of a step",
    "TrainingDataImbalance": "A different rank is slow in each step",
    "TrainingNetworkBursty": "Communication comes in bursts, while the ranks' own work is steady",
    "TrainingMemoryLeak": "Memory ({kind}) of {who} grows steadily and will be used up",
    "TrainingContention": "The steps of {who} are far less steady than those of its peers",
    "TrainingThermalSlowdown": "Heat holds {who} back, and the others wait for it",
    "TrainingPowerSlowdown": "Power holds {who} back, and the others wait for it",
}
_WHOLE = {"TrainingStalled": "The run stands still", "TrainingRunFailed": "The run has been down"}
_KINDS = {
    "device": "device",
    "device_allocated": "device, allocated",
    "device_reserved": "device, reserved",
    "host": "host",
    "host_rss": "host, the process",
    "worker_rss": "host, data workers",
}
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
    groups = problem.members("training_peer_group")
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
    """Return what is wrong, without a time."""
    named = who(problem)
    verb = "are" if len(problem.members(RANK) or problem.members(HOST)) > 1 else "is"
    phrase = _PHRASES.get(problem.alert, "")
    if problem.alert in _WHOLE and not problem.members(RANK):
        return _WHOLE[problem.alert]
    if phrase and (named or "{who}" in phrase or "{" not in phrase):
        phase = "several phases" if problem.phase == "mixed" else problem.phase
        kind = problem.labels.get(KIND, "")
        return phrase.format(
            Who=_capital(named), is_=verb, who=named or "all ranks", phase=phase, kind=_KINDS.get(kind, kind)
        )
    title = problem.title.rstrip(".") or problem.alert
    # An abbreviation stays as it is.
    small = title if title[1:2].isupper() else f"{title[:1].lower()}{title[1:]}"
    return f"{_capital(named)}: {small}" if named else title


def sentence(problem: Problem, found: Cost | None) -> str:
    """Return what is wrong, since when, and what it costs, in one line."""
    when = (
        f"since {clock(problem.begin)} UTC"
        if problem.lasts
        else f"from {clock(problem.begin)} to {clock(problem.end)} UTC"
    )
    if found is None:
        return f"{wrong(problem)} {when}"
    if problem.alert == "TrainingStalled":
        return f"{wrong(problem)} {when}, costs all of that time"
    return f"{wrong(problem)} {when}, costs {found.share:.0%} of each step"


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
