"""What the demo shows: live on a terminal, line by line elsewhere, and a table at the end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from laggard_cli.demo.acts import ACTS, Act, Truth
from laggard_cli.demo.play import Play, Progress, Result
from laggard_cli.diagnose.model import Verdict
from laggard_cli.units import duration

_BAR_WIDTH = 30
_ALERT_WIDTH = 27


class Display:
    """Shows progress. Used as a context; the live part disappears with it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._said = ""

    def __enter__(self) -> Callable[[Progress], None]:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(_panel(progress), refresh=True)
            return
        # Without a terminal a line is printed when something has changed, not twice a second.
        said = f"{_title(progress.act)}: {progress.doing}; {_names(progress.verdicts) or 'no alert'}"
        if said != self._said:
            self._said = said
            self._console.print(f"[{progress.elapsed:5.1f} s] {said}", markup=False, highlight=False)


def _panel(progress: Progress) -> RenderableType:
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total=progress.limit, completed=progress.elapsed, width=_BAR_WIDTH),
        f"{progress.doing}, {progress.elapsed:.0f} s",
        f"step {duration(progress.step_seconds)}" if progress.step_seconds is not None else "",
    )
    alerts = Text(_names(progress.verdicts) or "no alert", style="bold red" if progress.verdicts else "dim")
    return Group(Text(_title(progress.act), style="bold"), bar, alerts)


def show_result(console: Console, result: Result) -> None:
    """Print how an act went: the truth, what was found, and the advice."""
    mark = Text("right", style="bold green") if result.right else Text("WRONG", style="bold red")
    console.print(Text.assemble((_title(result.act), "bold"), "  ", mark))
    lines = Table.grid(padding=(0, 1))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    lines.add_row("injected", _truths(result.act))
    for verdict in result.verdicts or [None]:
        lines.add_row("found", "nothing" if verdict is None else _name(verdict))
        if verdict is not None:
            lines.add_row("why", verdict.description)
            lines.add_row("do", verdict.recommendation)
    for page in result.pages:
        lines.add_row("pager", Text(page))
    if result.act.truths:
        lines.add_row("time", "not detected" if result.seconds is None else f"detected after {result.seconds:.1f} s")
    console.print(Padding(lines, (0, 0, 1, 2)))


def show_summary(console: Console, play: Play, results: list[Result]) -> None:
    """Print the table of all acts and what the instrumentation cost."""
    table = Table(title="laggard demo", title_justify="left")
    table.add_column("act")
    # The longest name of an alert fits, and what was injected is told where it was not found.
    table.add_column("found", min_width=_ALERT_WIDTH)
    table.add_column("time", justify="right")
    table.add_column("")
    for result in results:
        injected = "" if result.right else f"\ninjected: {_truths(result.act)}"
        table.add_row(
            result.act.title,
            ("\n".join(map(_name_below, result.verdicts)) or "nothing") + injected,
            "" if result.seconds is None else f"{result.seconds:.1f} s",
            Text("right", style="green") if result.right else Text("WRONG", style="bold red"),
        )
    console.print(table)
    if play.self_time_share is not None and play.healthy is not None:
        step = play.healthy.facts["step_seconds"]
        console.print(f"Time in laggard's hooks: {play.self_time_share:.2%} of a step of {duration(step)}.")


def _title(act: Act | None) -> str:
    return "Start" if act is None else f"Act {ACTS.index(act) + 1} of {len(ACTS)}: {act.title}"


def _truths(act: Act) -> str:
    return "; ".join(map(_truth, act.truths)) or "nothing"


def _truth(truth: Truth) -> str:
    rank = f"rank {truth.rank}" if truth.rank else "all ranks"
    return f"{truth.alert}, {rank}, {truth.phase or 'any phase'}"


def _name(verdict: Verdict) -> str:
    rank = f"rank {verdict.rank}" if verdict.rank else "all ranks"
    return f"{verdict.alert}, {rank}, {verdict.phase or 'no phase'}"


def _name_below(verdict: Verdict) -> str:
    return "\n  ".join(_name(verdict).split(", ", 1))


def _names(verdicts: list[Verdict]) -> str:
    return "; ".join(_name(verdict) for verdict in verdicts)
