"""The card at the end of a local run, for a terminal or a log."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from laggard_cli.diagnose.view import STYLES, how_failed, rank_table
from laggard_cli.local_run.card import Card
from laggard_cli.local_run.verdicts import Said
from laggard_cli.report.costs import words
from laggard_cli.terminal import printable
from laggard_cli.units import duration

#: Of a shorter run most of what laggard takes is its start.
_SHARE_SECONDS = 60.0


def lines(card: Card, width: int, *, colour: bool) -> list[str]:
    """Return the card, line by line, each at most ``width`` characters wide."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, markup=False, emoji=False
    )
    with console.capture() as text:
        for part in _parts(card):
            console.print(part)
    return [line.rstrip() for line in text.get().splitlines()]


def _parts(card: Card) -> Iterator[RenderableType]:
    yield Text.assemble(("run ", "dim"), (printable(card.run), "bold"), f": {_facts(card)}")
    if phases := _phases(card):
        yield Text(phases)
    if card.measured.ranks:
        # The gravest verdict on a rank colours it.
        culprits = {said.verdict.rank: STYLES[said.verdict.gravity] for said in reversed(card.verdicts)}
        yield from rank_table(card.measured.ranks, culprits)
    if card.failure is not None:
        yield Text(printable(how_failed(card.failure)), style="bold red")
    for said, cost in zip(card.verdicts, card.costs, strict=True):
        yield _verdict(said, cost)
    if card.judgement:
        healthy = card.judgement.startswith("healthy")
        yield Text(printable(card.judgement), style="green" if healthy else "yellow")
    yield Text(_taken(card))
    for name, path in (("report", card.report), ("data", card.folder)):
        if path is not None:
            yield Text(f"{name}: {printable(str(path))}", no_wrap=True, overflow="ignore")


def _facts(card: Card) -> str:
    parts = [f"{card.ended} after {words(card.seconds)}"]
    if card.ranks_seen:
        parts.append(f"{card.ranks_seen} rank{'s' * (card.ranks_seen != 1)}")
    if card.steps is not None:
        length = card.measured.step_seconds
        parts.append(f"{card.steps} steps" + (f" of {duration(length)}" if length is not None else ""))
    return ", ".join(parts)


def _phases(card: Card) -> str:
    whole = card.measured.step_seconds
    if not whole:
        return ""
    parts = [
        f"{phase} {duration(seconds)} ({seconds / whole:.0%})"
        for phase, seconds in card.measured.phases.items()
        if seconds / whole >= 0.0005  # noqa: PLR2004 - what is not 0.0 %
    ]
    return f"a step: {', '.join(parts)}" if parts else ""


def _verdict(said: Said, cost: str) -> RenderableType:
    verdict = said.verdict
    until = "to the end" if said.end is None else f"for {words(said.end - said.begin)}"
    title = Text.assemble((verdict.alert, STYLES[verdict.gravity]), f"  {printable(verdict.severity)}, {until}")
    details = Table.grid(padding=(0, 1))
    details.add_column(style="dim", no_wrap=True)
    details.add_column(overflow="fold")
    for name, text in (
        ("why", verdict.description or verdict.summary),
        ("do", verdict.recommendation),
        ("cost", cost),
    ):
        if text:
            details.add_row(name, Text(printable(text)))
    parts: list[RenderableType] = [title, Padding(details, (0, 0, 0, 2))]
    if verdict.runbook_url:
        # In one piece, so that a terminal can open it.
        parts.append(Text(f"  {printable(verdict.runbook_url)}", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def _taken(card: Card) -> str:
    parts = [f"{duration(card.processor_seconds)} of processor time"]
    if card.seconds >= _SHARE_SECONDS:
        parts.append(f"{card.processor_seconds / card.seconds:.1%} of one processor")
    if card.measured.hooks_share is not None:
        parts.append(f"{card.measured.hooks_share:.2%} of a step in its ranks")
    return f"laggard took {', '.join(parts)}"
