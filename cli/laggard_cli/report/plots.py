"""Plots of a run over time, with what each shows in words and as a table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from laggard.shared.phases import Phase
from laggard_cli.report import pictures
from laggard_cli.report.arrays import Array, known, mean, middle, most
from laggard_cli.report.history import History
from laggard_cli.report.markup import details, figure, table
from laggard_cli.report.pictures import Axis
from laggard_cli.report.sentences import clock, suspects
from laggard_cli.report.verdicts import Problem
from laggard_cli.units import amount, duration

#: From the bottom up: own work, what is done once in a while, and waiting.
PHASES = tuple(
    phase.label
    for phase in (Phase.DATA, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER,
                  Phase.CHECKPOINT, Phase.EVALUATION, Phase.COMMUNICATION)
)  # fmt: skip
#: One moment of a checkpoint must not press all else flat: the plot ends at so many usual steps.
_STEPS_SHOWN = 2.5
_MOST_LINES = 8
#: Memory above which its limit is worth a place in the picture.
_NEAR_LIMIT = 1 / 3
_QUARTERS = 4


def phase_plot(axis: Axis, history: History) -> str:
    """Return what a step consists of, over time."""
    layers = {name: history.phases[name] for name in PHASES if known(history.phases.get(name, np.zeros(0))).any()}
    if not layers:
        return ""
    stack = np.nansum(np.array(list(layers.values())), axis=0)
    top = float(min(stack.max(), _STEPS_SHOWN * np.median(stack[stack > 0])))
    scale = [(0.0, "0"), (top / 2, duration(top / 2)), (top, duration(top))]
    sums = {name: float(known(values).sum()) for name, values in layers.items()}
    shares = {name: total / sum(sums.values()) for name, total in sums.items()}
    said = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))
    label = f"Phases of a step over time, mean over the ranks: {said}."
    edges = [
        history.span.begin + (history.span.end - history.span.begin) * part / _QUARTERS for part in range(_QUARTERS + 1)
    ]
    quarters = [history.columns(first, last) for first, last in itertools.pairwise(edges)]
    rows = [
        [name, f"{shares[name]:.1%}", *(_seconds(values[columns]) for columns in quarters)]
        for name, values in layers.items()
    ]
    headings = ["phase", "share", *(f"from {clock(first)}" for first in edges[:-1])]
    return figure(
        "What a step consists of",
        "Mean over the ranks, in time per step. Communication is on top: it is mostly waiting for the slowest.",
        pictures.stacked(axis, label, layers, scale),
        pictures.key((name, f"{name} {shares[name]:.0%}") for name in reversed(layers)),
        details("The same as a table", table("Time of each phase in a step, by quarter of the report", headings, rows)),
    )


def memory_plots(axis: Axis, history: History, problems: Sequence[Problem]) -> str:
    """Return the memory of the kinds that verdicts are about."""
    named = sorted(suspects(history, problems))
    return "".join(_memory(axis, history, kind, values, named) for kind, values in history.memory.items())


def _memory(axis: Axis, history: History, kind: str, values: Array, named: Sequence[int]) -> str:
    limit = history.capacity.get("host" if kind in ("host_rss", "worker_rss") else "device")
    above, usual = most(values), middle(values)
    found = known(above)
    if not len(found):
        return ""
    top = 1.1 * float(found.max())
    if limit is not None and top > _NEAR_LIMIT * limit:
        top = max(top, 1.03 * limit)
    scale = [(0.0, "0"), (top / 2, amount(top / 2, "By")), (top, amount(top, "By"))]
    chosen = [row for row in named if np.isfinite(values[row]).any()][:_MOST_LINES]
    rows = [(usual, "middle"), (above, "most"), *((values[row], "most") for row in chosen)]
    of = f" of {amount(limit, 'By')}" if limit is not None else ""
    said = f"The most of all ranks went from {amount(float(found[0]), 'By')} to {amount(float(found[-1]), 'By')}{of}."
    entries = [("most", "most of all ranks, and those that verdicts name"), ("middle", "middle rank")]
    if limit is not None and limit <= top:
        entries.append(("limited", "limit"))
    table_rows = [
        [f"rank {rank}", amount(float(line[0]), "By"), amount(float(line[-1]), "By")]
        for rank, row in zip(history.ranks, values, strict=True)
        if len(line := known(row))
    ]
    return figure(
        f"Memory: {kind}",
        said,
        pictures.lines(axis, f"Memory {kind} over time. {said}", rows, scale, limit),
        pictures.key(entries),
        details("The same as a table", table(f"Memory {kind} of each rank", ["rank", "first", "last"], table_rows)),
    )


def _seconds(values: Array) -> str:
    return duration(mean(values)) if np.isfinite(values).any() else "no data"
