"""The parts of a report that are tables: cost, hosts, configuration, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard_cli.past.times import iso
from laggard_cli.report.arrays import mean
from laggard_cli.report.costs import Losses, excess, words
from laggard_cli.report.history import HOST, RANK, History
from laggard_cli.report.markup import element, table, text
from laggard_cli.report.sentences import numbers, wrong
from laggard_cli.report.verdicts import Problem

_REASONS = {
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluation",
    "excluded": "warm-up, compilation and first batches",
    "repeated": "steps trained again after a restart",
    "restart": "ranks that were gone",
    "stall": "standing still",
    "startup": "starting up",
    "waiting": "waiting for slower ranks",
}
#: Below this share a loss is not shown on its own.
_SMALL = 0.0005


def cost(losses: Losses | None) -> str:
    """Return where the time of the ranks went, and what that is in hours and money."""
    if losses is None:
        return element("p", text("Not recorded: see what is not known."))
    hours, price = losses.rank_hours, losses.price
    kept = sorted(
        ((reason, share) for reason, share in losses.lost.items() if share >= _SMALL), key=lambda loss: -loss[1]
    )
    parts = [
        ("training that counts", losses.goodput),
        *((_REASONS.get(reason, reason), share) for reason, share in kept),
    ]
    rest = 1 - sum(share for _, share in parts)
    if abs(rest) >= _SMALL:
        parts.append(("not attributed", rest))
    parts.append(("all", sum(share for _, share in parts)))
    rows = [
        [name, f"{share:.1%}", f"{share * hours:.3f}", *([] if price is None else [f"{share * hours * price:.2f}"])]
        for name, share in parts
    ]
    headings = ["where the time went", "share", "rank-hours", *([] if price is None else ["money"])]
    lost = (1 - losses.goodput) * hours
    money = "" if price is None else f", worth {lost * price:.2f} at {price:g} a rank-hour"
    said = f"Of {hours:.2f} rank-hours {losses.goodput:.1%} were training that counts; {lost:.2f} were lost{money}."
    about = (
        f"As the rules recorded it, from {iso(losses.begin)} to {iso(losses.end)}: they look back over whole hours, "
        "every five minutes, so the time before and after a verdict is in it. A rank-hour is a GPU-hour where each "
        "rank has a GPU."
    )
    return (
        element("p", element("strong", text(said)))
        + element("p", text(about), class_="quiet")
        + table("Where the time of all ranks went; the parts add up", headings, rows)
    )


def hosts(history: History, problems: Sequence[Problem]) -> str:
    """Return the hosts of the run, those that verdicts name first."""
    grave = [problem for problem in problems if problem.severity != "info"]
    score = [mean(values) for values in excess(history)]
    rows: list[list[str]] = []
    of_host: dict[str, list[int]] = {}
    for row, rank in enumerate(history.ranks):
        of_host.setdefault(history.hosts.get(rank, ""), []).append(row)
    for host, members in of_host.items():
        ranks = [history.ranks[row] for row in members]
        known = [score[row] for row in members if np.isfinite(score[row])]
        said = [wrong(each) for each in grave if host in each.members(HOST) or set(ranks) & set(each.members(RANK))]
        rows.append(
            [
                host or "not known",
                numbers(ranks),
                "; ".join(dict.fromkeys(said[:3])) or "none",
                f"{max(known):.2f}" if known else "no data",
                f"{np.mean(known):.2f}" if known else "no data",
            ]
        )
    rows.sort(key=lambda row: row[2] == "none")
    caption = "Hosts, those that verdicts name first; own time as a multiple of peers'"
    return table(caption, ["host", "ranks", "verdicts", "slowest rank", "mean"], rows, numbers=3)


def configuration(history: History) -> str:
    """Return what the run ran on; where ranks or restarts differ, all of it."""
    if not history.information:
        return element("p", text("Not known: the run exports no training_run_info."))
    names = sorted({name for each in history.information for name in each})
    values = {name: sorted({each.get(name, "not told") for each in history.information}) for name in names}
    rows = [[name.removeprefix("training_").replace("_", " "), " | ".join(values[name])] for name in names]
    differs = any(len(each) > 1 for each in values.values())
    remark = "Ranks, or restarts, of this run differ where a line has several values."
    return (element("p", text(remark)) if differs else "") + table(
        "As the ranks reported it", ["fact", "value"], rows, numbers=2
    )


def unknown(history: History, missing: Sequence[str]) -> str:
    """Return what is not known, and how to read gaps."""
    span = history.span
    how = (
        f"A value each {words(span.step)}, each a mean over {words(span.window)}. Hatched is a time without data, grey "
        "one in which a rank reported and ended no step; neither counts as zero."
    )
    said = missing or ("Nothing that this report needs was missing.",)
    return element("ul", *(element("li", text(each)) for each in said)) + element("p", text(how), class_="quiet")
