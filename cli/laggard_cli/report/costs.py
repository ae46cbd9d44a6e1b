"""What the problems of a run cost: of each problem what its own numbers say, and of the run what the rules recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard_cli.errors import CommandError
from laggard_cli.pack import threshold
from laggard_cli.past.templates import TemplateError, questions, render
from laggard_cli.prometheus import Sample
from laggard_cli.report.arrays import Array, by_time, mean, middle
from laggard_cli.report.history import GROUP, HOST, RANK, Counted, History
from laggard_cli.report.span import Span
from laggard_cli.report.verdicts import Problem


@dataclass(frozen=True)
class Cost:
    """What a problem cost while it lasted."""

    share: float
    """Of each step, or of the time where no step ended."""
    rank_hours: float
    arithmetic: str
    said: str
    """The share, in words."""


@dataclass(frozen=True)
class Losses:
    """Where the time of the ranks went. The parts add up to the whole."""

    begin: float
    end: float
    rank_hours: float
    goodput: float
    """Share of the time that went into steps that count."""
    lost: dict[str, float]
    """Share of the time by reason."""
    price: float | None
    """Of an hour of one rank, where somebody recorded it."""


def reference(own: Array) -> Array:
    """Return the own time that peers need, of rank by time: one value for each time, as rules/baseline.yml has it."""
    for_median, for_quartile = threshold("peer_median_ranks"), threshold("peer_quartile_ranks")

    def needed(values: Array) -> float:
        share = 0.5 if len(values) >= for_median else 0.25 if len(values) >= for_quartile else 0.0
        return float(np.quantile(values, share))

    return by_time(own, needed)


def excess(history: History, *, across: bool = False) -> Array:
    """Return each rank's own time over that of its peers, rank by time; 1 is as long as they need.

    Args:
        history: of the run.
        across: all ranks are peers, whatever group they are in.
    """
    made = np.full(history.own.shape, np.nan)
    names = np.array(["" if across else history.groups.get(rank, "") for rank in history.ranks])
    for group in set(names.tolist()):
        rows = names == group
        peers = reference(history.own[rows])
        made[rows] = history.own[rows] / np.where(peers > 0, peers, np.nan)
    return made


def step(history: History) -> Array:
    """Return the length of a step without checkpoint and evaluation, by time: the middle rank's."""
    return middle(history.own + np.where(np.isfinite(history.wait), history.wait, 0.0))


def concerned(history: History, problem: Problem) -> list[int]:
    """Return the rows of the ranks that a problem names: by number, by host or by peer group."""
    ranks, hosts, groups = (set(problem.members(label)) for label in (RANK, HOST, GROUP))
    if ranks:
        return [row for row, rank in enumerate(history.ranks) if rank in ranks]
    return [
        row
        for row, rank in enumerate(history.ranks)
        if history.hosts.get(rank, "") in hosts or (groups and history.groups.get(rank, "") in groups)
    ]


def cost(server: Counted, history: History, problem: Problem) -> Cost | None:
    """Return what a problem cost, or nothing where its alert does not say.

    The annotation ``cost`` says the share of each step that is lost: the alert's value, or the answer to a query. Its
    mean while the alert fired counts. One that has neither stands for all of the time.
    """
    ranks = max(history.expected, len(history.ranks))
    lasted = words(problem.seconds)
    try:
        asked = questions(problem.cost, problem.worst)
    except TemplateError:
        return None
    if not problem.cost:
        return None
    if not asked and "$value" not in problem.cost:
        hours = ranks * problem.seconds / 3600
        text = f"no step ended for {lasted} while this fired: {ranks} ranks \u00d7 {lasted} = {hours:.3g} rank-hours"
        return Cost(1.0, hours, text, "all of that time")
    server.say("what it cost")
    length = max(problem.end - problem.begin, history.span.step)
    span = Span(problem.end - length, problem.end, history.span.step, history.span.window)
    try:
        answers = server.over(asked[0] if asked else problem.query, span)
    except CommandError:
        return None  # as of a pair of servers that records twice, and is not asked as one
    found = [
        value
        for series in answers
        if series.labels.items() <= {**problem.worst, "__name__": series.labels.get("__name__", "")}.items()
        for value in series.values.values()
    ]
    share = mean(np.array(found, dtype=float))
    if not math.isfinite(share):
        return None
    share = min(max(0.0, share), 1.0)
    shown = round(share, 2)
    said = render(problem.cost, problem.worst, shown, lambda _: [Sample({}, shown)])
    hours = share * ranks * problem.seconds / 3600
    return Cost(share, hours, f"{said}; \u00d7 {ranks} ranks \u00d7 {lasted} = {hours:.3g} rank-hours", said)


def losses(server: Counted, history: History) -> Losses | None:
    """Return where the time went, or nothing where the rules have not recorded it.

    The rules say it for the last hour, or the life of a younger run: so it is taken at the end and each hour before.
    """
    server.say("what is lost")
    own = history.run.matcher()
    good_at = f"run:training_goodput:ratio{own}"
    evaluated = f"max_over_time((timestamp({good_at}) and {good_at} >= 0)[15m:15s])"
    moments = (sample.value for sample in server.at(evaluated, history.span.end))
    ends = [moment for moment in moments if history.span.begin - 3600 <= moment <= history.span.end + 3600]
    if not ends:
        return None
    # What came after the last evaluation is in none.
    end = max(ends)
    hours = max(1, math.ceil((end - history.span.begin) / 3600 - 1e-6))
    span = Span(end - 3600 * (hours - 1), end, 3600, 3600)
    lost = server.over(f"last_over_time(run_reason:training_time_lost:ratio{own}[10m])", span)
    good = server.over(f"last_over_time(run:training_goodput:ratio{own}[10m]) >= 0", span)
    price = server.at(f"last_over_time(run:training_rank_price:value{own}[10m])", end)
    weights: dict[float, float] = {}
    begin = end
    for series in good:
        for moment in series.values:
            first = max(moment - 3600, history.started) if math.isfinite(history.started) else moment - 3600
            weights[moment] = max(0.0, moment - first)
            begin = min(begin, first)
    total = sum(weights.values())
    if not total:
        return None

    def share(values: dict[float, float]) -> float:
        found = ((moment, value) for moment, value in values.items() if math.isfinite(value))
        return sum(value * weights.get(moment, 0.0) for moment, value in found) / total

    return Losses(
        begin=begin,
        end=end,
        rank_hours=total * max(history.expected, len(history.ranks)) / 3600,
        goodput=share(good[0].values),
        lost={each.labels.get("training_reason", ""): share(each.values) for each in lost},
        price=price[0].value if price else None,
    )


def words(seconds: float) -> str:
    """Return a duration as a person says it, without parts that do not matter."""
    whole = round(seconds)
    if whole < 120:  # noqa: PLR2004 - two minutes
        return f"{whole} s"
    if whole < 600:  # noqa: PLR2004 - ten minutes
        return f"{whole / 60:.2g} min"
    if whole < 7200:  # noqa: PLR2004 - two hours
        return f"{whole / 60:.0f} min"
    return f"{whole / 3600:.1f} h" if whole < 172800 else f"{whole / 86400:.1f} days"  # noqa: PLR2004 - two days
