"""What :func:`laggard.summary` returns: the last steps of this rank in figures, as text, as a dictionary and as HTML.

It is made of the steps that the rank keeps anyway, so it costs nothing while nobody asks, and needs no server. It
compares nobody: one rank alone does not know whether it is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._identity import Identity
    from laggard._steps import Step

#: Of fewer steps the 95th percentile would be the longest of all.
_TAIL_STEPS = 20
_BAR = 24
_NANOSECOND = 1e-9


@dataclass(frozen=True)
class Duration:
    """One duration over the measured steps, in seconds."""

    mean: float
    #: ``None`` of fewer than 20 steps.
    p95: float | None

    def as_dict(self) -> dict[str, float]:
        """Return what is known, by its name."""
        return {"mean_seconds": self.mean, **({} if self.p95 is None else {"p95_seconds": self.p95})}


@dataclass(frozen=True, repr=False)
class Summary:
    """The last steps of this rank. A phase that was not seen, or cannot be measured here, is absent."""

    run: str = ""
    rank: int = 0
    world_size: int = 1
    #: Steps of this process so far, and those among the last ones that count.
    steps: int = 0
    measured: int = 0
    #: Why others among the last ones do not count, and how many.
    excluded: Mapping[str, int] = field(default_factory=dict[str, int])
    step: Duration | None = None
    own: Duration | None = None
    phases: Mapping[str, Duration] = field(default_factory=dict[str, Duration])
    #: Phases of any step that cannot be told here.
    not_measured: Sequence[str] = ()
    #: Why there are no figures.
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, such as JSON has. What is not known is not there."""
        found: dict[str, Any] = {
            "run": self.run,
            "rank": self.rank,
            "world_size": self.world_size,
            "steps": self.steps,
            "measured_steps": self.measured,
            "excluded_steps": dict(self.excluded),
            "not_measured": list(self.not_measured),
        }
        if self.step is not None and self.own is not None:
            found["step"] = self.step.as_dict()
            found["own"] = self.own.as_dict()
            found["phases"] = {
                name: {**phase.as_dict(), "share": self._share(phase)} for name, phase in self.phases.items()
            }
        if self.note:
            found["note"] = self.note
        return found

    def __str__(self) -> str:
        """Return a few lines for a terminal."""
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
        lines = [self._title()]
        for (name, mean, share, tail), length in zip(rows, [0, *self._bars()], strict=False):
            cells = f"  {name:<{widths[0]}}  {mean:>{widths[1]}}  {share:>{widths[2]}}  {tail:>{widths[3]}}"
            lines.append(f"{cells}  {'█' * round(length * _BAR)}".rstrip())
        return "\n".join([*lines, *self._remarks()])

    #: A terminal of IPython shows what a script would print.
    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return a table for a notebook. Nothing in it is loaded from elsewhere."""
        rows = self._rows()
        style = "text-align:right;padding:0 1em 0 0"
        html = [f"<div><b>{escape(self._title())}</b>"]
        if rows:
            head, *body = rows
            html.append("<table><thead><tr>")
            html += [f'<th style="{style if column else ""}">{escape(cell)}</th>' for column, cell in enumerate(head)]
            html.append("<th></th></tr></thead><tbody>")
            for row, length in zip(body, self._bars(), strict=True):
                html.append(f'<tr><td style="text-align:left">{escape(row[0])}</td>')
                html += [f'<td style="{style}">{escape(cell)}</td>' for cell in row[1:]]
                bar = f"background:#c60;height:.8em;width:{length * 12:.2f}em"
                html.append(f'<td style="text-align:left;min-width:12em"><div style="{bar}"></div></td></tr>')
            html.append("</tbody></table>")
        html += [f"<div>{escape(remark)}</div>" for remark in self._remarks()]
        return "".join([*html, "</div>"])

    def __rich__(self) -> Any:
        """Return a table of rich, which asks for it, between lines that are as wide as the terminal."""
        from rich.console import Group  # noqa: PLC0415 - only who has rich comes here
        from rich.table import Table  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        head, *body = self._rows() or [("", "", "", "")]
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column, cell in enumerate((*head, "")):
            table.add_column(cell, justify="right" if 0 < column < len(head) else "left", no_wrap=True)
        for row, length in zip(body, self._bars(), strict=True):
            table.add_row(*map(Text, row), Text("█" * round(length * _BAR), style="yellow"))
        return Group(Text(self._title(), style="bold"), table, *map(Text, self._remarks()))

    def _title(self) -> str:
        if self.note:
            return f"laggard: {self.note}"
        left_out = ", ".join(f"{number} {reason}" for reason, number in self.excluded.items())
        less = f"; excluded: {left_out}" if left_out else ""
        count = f"the last {self.measured} of {self.steps} steps{less}"
        return f"run {self.run or '(no name yet)'}, rank {self.rank} of {self.world_size}: {count}"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Return the head of the table and its rows: what, mean, share of the step, 95th percentile."""
        if self.step is None or self.own is None:
            return []
        named = {"step": self.step, "own time": self.own, **self.phases}
        return [
            ("", "mean", "share", "p95"),
            *(
                (name, _text(each.mean), f"{self._share(each):.0%}", "" if each.p95 is None else _text(each.p95))
                for name, each in named.items()
            ),
        ]

    def _bars(self) -> list[float]:
        """Return the length of the bar of each row, 0 to 1."""
        if self.step is None or self.own is None:
            return []
        return [0.0, 0.0, *(self._share(each) for each in self.phases.values())]

    def _share(self, each: Duration) -> float:
        return each.mean / self.step.mean if self.step is not None and self.step.mean else 0.0

    def _remarks(self) -> list[str]:
        remarks: list[str] = []
        if self.not_measured:
            remarks.append(f"not measured here: {', '.join(self.not_measured)}")
        if self.step is not None and self.world_size > 1:
            remarks.append("this rank alone; laggard diagnose compares it with the others")
        return remarks


def summarize(steps: Sequence[Step], identity: Identity, total: int, signals: Mapping[str, bool]) -> Summary:
    """Return the summary of steps.

    Args:
        steps: the last ones, the newest last.
        identity: the rank.
        total: steps so far.
        signals: what can be trusted, as :func:`laggard._signals.available` says.
    """
    counted = [step for step in steps if not step.excluded]
    excluded = Counter(step.excluded for step in steps if step.excluded)
    about = Summary(identity.run, identity.rank, identity.world_size, total, len(counted), dict(excluded))
    if not counted:
        reasons = ", ".join(f"{number} {reason}" for reason, number in excluded.items())
        note = f"none of the last {len(steps)} steps counts: {reasons}" if excluded else "no step has ended yet"
        return replace(about, note=note)
    # The times of the others may be another phase's, or none.
    absent = {name for name, trusted in signals.items() if not trusted}
    phases = {
        phase.label: _duration([step.phases[phase] for step in counted])
        for phase in sorted(Phase, key=lambda phase: (phase is Phase.OTHER, phase))
        if phase.label not in absent and any(step.phases[phase] for step in counted)
    }
    return replace(
        about,
        step=_duration([step.duration for step in counted]),
        own=_duration([step.own for step in counted]),
        phases=phases,
        not_measured=tuple(phase.label for phase in Phase if phase.label in absent),
    )


def seen_in(steps: Collection[Step]) -> set[Phase]:
    """Return the phases in which steps spend time."""
    return {phase for phase in Phase if any(step.phases[phase] for step in steps)}


def _duration(nanoseconds: Sequence[int]) -> Duration:
    ordered = sorted(nanoseconds)
    tail = ordered[int(0.95 * len(ordered))] * _NANOSECOND if len(ordered) >= _TAIL_STEPS else None
    return Duration(sum(ordered) / len(ordered) * _NANOSECOND, tail)


def _text(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
