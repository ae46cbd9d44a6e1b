"""What one rank's trace has that another's has not: time by phase, and by operator and kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from laggard_cli.kineto.partition import PHASES
from laggard_cli.kineto.run import TracedRank
from laggard_cli.terminal import printable
from laggard_cli.units import duration

#: Phases as they come in a step.
_ORDER = (*PHASES[1:], PHASES[0])
#: What differs by less than this share of the step is not shown.
_SHARE = 0.01
#: Operators and kernels shown, of each kind.
_MOST = 5
#: Letters of a name: those of kernels go on with their template's arguments.
_LETTERS = 80


@dataclass(frozen=True)
class Line:
    """Seconds a step of one thing, on the slow rank and on the other."""

    kind: str
    name: str
    slow: float
    other: float

    @property
    def more(self) -> float:
        """Seconds that the slow rank needs more; negative where it needs less."""
        return self.slow - self.other


def pair(ranks: Sequence[TracedRank], slow: int | None = None) -> tuple[TracedRank, TracedRank]:
    """Return a slow rank, the given or the slowest, and the usual one of the others, by own time.

    Two ranks at least are needed.
    """
    by_own = sorted(ranks, key=lambda rank: rank.own)
    chosen = next((rank for rank in ranks if rank.rank == slow), by_own[-1])
    others = [rank for rank in by_own if rank is not chosen]
    return chosen, others[(len(others) - 1) // 2]


def differences(slow: TracedRank, other: TracedRank) -> list[Line]:
    """Return what differs: phases in their order, then operators, kernels and functions, by how much they differ."""
    least = _SHARE * float(np.median([rank.steps.length.mean() for rank in (slow, other)]))
    lines = [Line("phase", phase.label, slow.mean(phase), other.mean(phase)) for phase in _ORDER]
    for kind, mine, theirs in (
        ("operator", slow.costs.host, other.costs.host),
        ("kernel", slow.costs.device, other.costs.device),
        ("function", slow.costs.code, other.costs.code),
    ):
        found = [Line(kind, name, mine.get(name, 0.0), theirs.get(name, 0.0)) for name in mine.keys() | theirs.keys()]
        found = [line for line in found if abs(line.more) >= least]
        lines += sorted(found, key=lambda line: (-abs(line.more), line.name))[:_MOST]
    return [line for line in lines if line.slow or line.other]


def show_differences(console: Console, slow: TracedRank, other: TracedRank) -> None:
    """Print what differs between two ranks, in the mean step."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", f"rank {slow.rank}", f"rank {other.rank}", "difference"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    # What a narrow terminal takes from is a name, and each has one line.
    table.add_column("")
    kind = ""
    for line in differences(slow, other):
        sign = "+" if line.more >= 0 else "-"
        first, kind = (line.kind if line.kind != kind else ""), line.kind
        name = Text(printable(line.name), no_wrap=True, overflow="ellipsis")
        name.truncate(_LETTERS, overflow="ellipsis")
        table.add_row(first, duration(line.slow), duration(line.other), sign + duration(abs(line.more)), name)
    console.print(
        f"mean step of rank {slow.rank} ({len(slow.steps)} traced) and of rank {other.rank} ({len(other.steps)})"
    )
    console.print(Padding(table, (0, 0, 0, 2)))
