"""A verdict for a person: in a terminal, and as Markdown for a pull request."""

from __future__ import annotations

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from laggard_cli.gate.measured import Measured
from laggard_cli.gate.statistics import CONFIDENCE
from laggard_cli.gate.verdict import LEVEL, Comparison, Outcome, Verdict
from laggard_cli.terminal import printable
from laggard_cli.units import amount

_STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.UNDECIDED: "yellow",
    Outcome.TOLD: "dim",
}
#: Beside the colour, for those who see none.
_MARKS = {Outcome.PASS: "✓", Outcome.FAIL: "✗", Outcome.UNDECIDED: "?", Outcome.TOLD: "·"}
#: How wide a terminal must be for a column that a narrow one does without: how sure it is, then both runs.
_WIDTHS = {5: 88, 1: 76, 2: 76}
_HEADINGS = ("", "baseline", "candidate", "worse by", "at most", "p", "verdict")


def rule(limit: float) -> str:
    """Return the rule by which a verdict was reached."""
    whole, half, sure = (f"{100 * share:.3g} %" for share in (limit, limit / 2, CONFIDENCE))
    return (
        f"Fails where it is significantly worse (Mann-Whitney on blocks, p < {LEVEL:g} after Holm's correction; means "
        "by permutation of blocks; several recordings by Student's test) and the estimate is at least half the limit, "
        f"{half}; passes where {whole} is excluded with {sure} confidence. Phases count as shares of the baseline's "
        f"step. Memory fails above {whole}."
    )


def headline(verdict: Verdict) -> str:
    """Return the verdict in one line."""
    step, throughput, pauses = verdict.comparisons[:3]
    failed = [comparison.name for comparison in verdict.comparisons if comparison.outcome is Outcome.FAIL]
    # Of time for one step more, throughput loses so much.
    change = f"step {_signed(step.change)}, throughput {_signed(1 / (1 + throughput.change) - 1)}"
    if pauses.outcome is Outcome.FAIL:
        change += f", pauses {_signed(pauses.change)} of a step"
    if verdict.outcome is Outcome.FAIL:
        return f"worse in {', '.join(failed)}: {change}{_where(verdict)}"
    if verdict.outcome is Outcome.UNDECIDED:
        unit = verdict.candidate.unit
        have = min(verdict.baseline.length, verdict.candidate.length)
        return f"cannot decide: needs about {verdict.needed} {unit}s of each run, there are {have}; {change}"
    return f"no slow-down of {100 * verdict.limit:.3g} %: {change}"


def _where(verdict: Verdict) -> str:
    """Return in which phases the step grew by more than a fifth of its growth, the most first."""
    step = verdict.comparisons[0]
    grown = [each for each in verdict.phases if step.change > 0 and each.change > step.change / 5]
    if step.outcome is not Outcome.FAIL or not grown:
        return ""
    grown.sort(key=lambda phase: -phase.change)
    return "; of the step, " + ", ".join(f"{phase.name} {_signed(phase.change)}" for phase in grown)


def facts(verdict: Verdict) -> str:
    """Return what was compared, in one line."""
    baseline, candidate = verdict.baseline, verdict.candidate
    return (
        f"{candidate.run} ({_size(candidate)}) against {baseline.run} ({_size(baseline)}), {candidate.ranks} "
        f"rank{'s' if candidate.ranks > 1 else ''}; a slow-down of {100 * verdict.limit:.3g} % is found in 95 of 100 "
        f"cases from {verdict.needed} {candidate.unit}s of each"
    )


def _size(run: Measured) -> str:
    recordings = f" in {len(run.recordings)} recordings" if run.recordings else ""
    return f"{run.length} {run.unit}s{recordings}"


def show(console: Console, verdict: Verdict) -> None:
    """Print a verdict."""
    outcome = verdict.outcome
    title = Text.assemble((f"{_MARKS[outcome]} {outcome.value}", _STYLES[outcome]), f"  {printable(headline(verdict))}")
    table = Table(box=None, pad_edge=False, header_style="dim")
    shown = [number for number in range(len(_HEADINGS)) if console.width >= _WIDTHS.get(number, 0)]
    for number in shown:
        table.add_column(
            _HEADINGS[number], justify="left" if number in (0, len(_HEADINGS) - 1) else "right", no_wrap=True
        )
    for comparison in verdict.comparisons:
        *cells, last = (_cells(comparison)[number] for number in shown)
        table.add_row(*cells, Text(last, style=_STYLES[comparison.outcome]))
    notes = Text("\n".join((*_remarks(verdict), printable(facts(verdict)), rule(verdict.limit))), style="dim")
    console.print(Group(title, Padding(table, (1, 0, 1, 2)), Padding(notes, (0, 0, 0, 2))))


def markdown(verdict: Verdict) -> str:
    """Return a verdict as GitHub's Markdown."""
    mark = {Outcome.PASS: "✅", Outcome.FAIL: "❌", Outcome.UNDECIDED: "❔"}[verdict.outcome]
    lines = [
        f"### {mark} laggard gate: {verdict.outcome.value}",
        "",
        _plain(headline(verdict)),
        "",
        f"| {' | '.join(_HEADINGS)} |",
        f"|---|{'---:|' * (len(_HEADINGS) - 2)}---|",
        *(f"| {' | '.join(map(_plain, _cells(comparison)))} |" for comparison in verdict.comparisons),
        "",
        *(f"- {_plain(remark)}" for remark in (*_remarks(verdict), facts(verdict))),
        "",
        f"<sub>{_plain(rule(verdict.limit))}</sub>",
        "",
    ]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: names of runs come from elsewhere."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#!~@" else letter for letter in escaped)


#: One recording of each knows the noise inside of it alone.
_SINGLE = (
    "one recording of each does not show how much equal runs differ here; where others use the machine, record both in "
    "turns, at least four times each, and give all recordings"
)


def _remarks(verdict: Verdict) -> list[str]:
    several = verdict.baseline.recordings or verdict.candidate.recordings
    remarks = [_SINGLE] if verdict.outcome is Outcome.FAIL and not several else []
    return remarks + [
        f"{each.name}: {each.outcome.value}, {each.reason}"
        for each in verdict.comparisons
        if each.outcome in (Outcome.UNDECIDED, Outcome.TOLD)
    ]


def _cells(comparison: Comparison) -> tuple[str, ...]:
    return (
        comparison.name,
        amount(comparison.baseline, comparison.unit),
        amount(comparison.candidate, comparison.unit),
        _signed(comparison.change),
        "" if comparison.upper is None else _signed(comparison.upper),
        "" if comparison.p is None else f"{comparison.p:.2g}",
        f"{_MARKS[comparison.outcome]} {comparison.outcome.value}",
    )


def _signed(share: float) -> str:
    # Without the sign of a zero.
    return f"{round(100 * share, 1) + 0.0:+.1f} %"
