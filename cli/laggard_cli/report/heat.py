"""Heat maps of ranks by time, with what each shows in words and as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard_cli.report import pictures, raster
from laggard_cli.report.arrays import Array, known, mean
from laggard_cli.report.costs import excess
from laggard_cli.report.history import PLACES, History
from laggard_cli.report.markup import details, element, figure, table, text
from laggard_cli.report.pictures import Axis, Row
from laggard_cli.report.sentences import clock, suspects
from laggard_cli.report.verdicts import Problem
from laggard_cli.units import duration

#: Up to so many ranks each has a row of its own; of more, those that verdicts name have one, and all are grouped.
_MOST_ROWS, _MOST_NAMED, _GROUPS, _GROUP_OF = 64, 16, 40, 8
#: Ranks in the table beside the pictures.
_MOST_LISTED = 1024
#: Own time as a multiple of that of peers: colours begin here and reach at least, and at most, so far.
_LOW, _LEAST_HIGH, _MOST_HIGH = 0.95, 1.25, 3.0
_LEAST_WAIT = 0.3
#: Of so many values one may be beyond the colours.
_NEARLY_ALL = 0.995
#: Places in the order in which one of them shows for several ranks: the one that does not wait with the others.
_PLACE_ORDER = {4: 0.0, 1: 1.0, 0: 2.0, 2: 3.0, 3: 4.0}


def rows_of(history: History, problems: Sequence[Problem]) -> list[Row]:
    """Return the rows of heat maps: those that verdicts name first where not every rank has a row."""
    named = suspects(history, problems)

    def one(row: int) -> Row:
        rank = history.ranks[row]
        host = history.hosts.get(rank, "")
        return Row(f"rank {rank}", (row,), row in named, f"rank {rank}" + (f" on {host}" if host else ""))

    count = len(history.ranks)
    if count <= _MOST_ROWS:
        return [one(row) for row in range(count)]
    worst = [max(known(values).tolist(), default=0.0) for values in excess(history)]
    first = sorted(sorted(named, key=lambda row: -worst[row])[:_MOST_NAMED])
    size = (count // _GROUPS // _GROUP_OF + 1) * _GROUP_OF
    made = [one(row) for row in first]
    for begin in range(0, count, size):
        members = tuple(range(begin, min(begin + size, count)))
        label = f"{history.ranks[members[0]]}\u2013{history.ranks[members[-1]]}"
        made.append(Row(label, members, bool(named & set(members)), f"ranks {label}"))
    return made


def pooled(values: Array, rows: Sequence[Row], *, least: bool = False) -> Array:
    """Return a row for each of some rows: of several ranks the most, or the least."""
    made: Array = np.full((len(rows), values.shape[1]), np.nan)
    sign = -1.0 if least else 1.0
    for index, row in enumerate(rows):
        part = sign * values[list(row.members)]
        found = np.where(np.isfinite(part), part, -np.inf).max(axis=0)
        made[index] = np.where(np.isfinite(found), sign * found, np.nan)
    return made


def own_map(axis: Axis, history: History, problems: Sequence[Problem]) -> str:
    """Return the heat map of own times."""
    rows = rows_of(history, problems)
    # In a stage that is slow as a whole no rank is slower than its peers.
    across = any(problem.alert == "TrainingStageSlow" for problem in problems)
    values = pooled(excess(history, across=across), rows)
    high = min(_MOST_HIGH, max(_LEAST_HIGH, _nearly_most(values)))
    says = [_row_says(row, history.times, " times its peers") for row in values]
    label = "Own time of each rank as a multiple of its peers'. "
    pixels = raster.shaded(values, _LOW, high, pooled(history.reports, rows))
    return figure(
        "Who works longer than its peers",
        "Own time of a step, as a multiple of what the rank's peers need. One bright line is a slow rank; bright lines "
        "of one host are a slow node; spots that move from rank to rank are uneven data."
        + (" Since a peer group is slow, all ranks of the run count as peers here." if across else "")
        + (" Of each group of ranks the one that works longest shows." if _grouped(rows) else ""),
        pictures.heat_map(axis, label + _remarkable(rows, says), rows, pixels, says),
        pictures.ramp("as long as its peers", f"{high:.3g} times as long"),
        details("The same as a table", _ranks_table(history)),
    )


def wait_map(axis: Axis, history: History, problems: Sequence[Problem]) -> str:
    """Return the heat map of waits."""
    rows = rows_of(history, problems)
    step = history.own + history.wait
    values = pooled(history.wait / np.where(step > 0, step, np.nan), rows, least=True)
    high = max(_LEAST_WAIT, _nearly_most(values))
    says = [_row_says(100 * row, history.times, " % of a step") for row in values]
    label = "Share of each step in which a rank waits in collectives. "
    pixels = raster.shaded(values, 0.0, high, pooled(history.reports, rows))
    return figure(
        "Who waits",
        "Time in collectives, as a share of the step. Bright ranks are the victims; the dark line among them is the "
        "one that they wait for."
        + (" Of each group of ranks the one that waits least shows." if _grouped(rows) else ""),
        pictures.heat_map(axis, label + _remarkable(rows, says), rows, pixels, says),
        pictures.ramp("0 %", f"{high:.0%} of a step"),
        details("The same as a table", element("p", text("Column waits of the table of own times, above."))),
    )


def place_map(axis: Axis, history: History, problems: Sequence[Problem]) -> str:
    """Return where each rank stood, where that was asked for."""
    if history.places is None:
        return ""
    rows = rows_of(history, problems)
    order: Array = np.full(history.places.shape, np.nan)
    for code, place in _PLACE_ORDER.items():
        order[history.places == code] = place
    found = pooled(order, rows)
    values: Array = np.full(found.shape, np.nan)
    for code, place in _PLACE_ORDER.items():
        values[found == place] = code
    says = [f"at last: {PLACES[int(line[-1])]}" if len(line := known(row)) else "no data" for row in values]
    shares = [
        [row.about, *(_percent(mean(np.where(np.isfinite(line), line == code, np.nan))) for code in range(len(PLACES)))]
        for row, line in zip(rows, values, strict=True)
    ]
    label = "Where each rank stood. " + _remarkable(rows, says)
    return figure(
        "Where each rank stood",
        "As the state files say, which outlive a stuck or dead process. In a hang all wait in a collective but the one "
        "that did not come.",
        pictures.heat_map(axis, label, rows, raster.placed(values), says),
        pictures.place_key(PLACES),
        details("The same as a table", table("Share of the time in each place", ["rank", *PLACES], shares)),
    )


def _grouped(rows: Sequence[Row]) -> bool:
    return any(len(row.members) > 1 for row in rows)


def _nearly_most(values: Array) -> float:
    found = known(values)
    return float(np.quantile(found, _NEARLY_ALL)) if len(found) else 0.0


def _remarkable(rows: Sequence[Row], says: Sequence[str]) -> str:
    marked = [f"{row.about}: {said}" for row, said in zip(rows, says, strict=True) if row.marked]
    return "; ".join(marked[:4]) or "No row stands out by a verdict."


def _row_says(values: Array, times: Array, unit: str) -> str:
    """Return the mean and the most of a row, and when that was."""
    if not np.isfinite(values).any():
        return "no data"
    place = int(np.nanargmax(values))
    return f"{mean(values):.2f}{unit} on average, at most {values[place]:.2f}{unit} at {clock(float(times[place]))} UTC"


def _ranks_table(history: History) -> str:
    score = excess(history)
    means = [mean(values) if np.isfinite(values).any() else np.inf for values in score]
    shown = sorted(sorted(range(len(means)), key=lambda row: -means[row])[:_MOST_LISTED])
    rows: list[list[str]] = []
    for row in shown:
        rank, own = history.ranks[row], score[row]
        place = int(np.nanargmax(own)) if np.isfinite(own).any() else None
        rows.append(
            [
                f"rank {rank}",
                history.hosts.get(rank, "not known"),
                _seconds(history.own[row]),
                "no data" if place is None else f"{means[row]:.2f}",
                "no data" if place is None else f"{own[place]:.2f} at {clock(float(history.times[place]))}",
                _seconds(history.wait[row]),
                f"{np.isfinite(history.reports[row]).mean():.0%}",
            ]
        )
    headings = ["rank", "host", "own time", "times its peers", "at most", "waits", "reported"]
    which = f"the {len(shown)} slowest ranks" if len(shown) < len(history.ranks) else "all ranks"
    return table(f"Own time and wait of a step, mean over the report, {which}", headings, rows, numbers=2)


def _seconds(values: Array) -> str:
    return duration(mean(values)) if np.isfinite(values).any() else "no data"


def _percent(share: float) -> str:
    return f"{share:.0%}" if np.isfinite(share) else "no data"
