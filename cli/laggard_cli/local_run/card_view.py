"""The card at the end of a local run, for a terminal or a log."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from laggard_cli.console import hanging
from laggard_cli.diagnose.view import STYLES, how_failed, rank_table
from laggard_cli.local_run.card import Card
from laggard_cli.local_run.verdicts import Said
from laggard_cli.report.costs import words
from laggard_cli.terminal import printable
from laggard_cli.units import duration

#: Of a shorter run most of what laggard takes is its start.
_SHARE_SECONDS = 60.0
#: Columns of what stands before a text about a verdict.
_LABEL = 9


def lines(card: Card, width: int, *, colour: bool) -> list[str]:
    """Return the card, line by line, each at most ``width`` characters wide, but for an address or a path."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, markup=False, emoji=False
    )
    with console.capture() as text:
        for part in _parts(card):
            console.print(part, crop=False)
    return [line.rstrip() for line in text.get().splitlines()]


def _parts(card: Card) -> Iterator[RenderableType]:
    yield Text.assemble(("run ", "dim"), (printable(card.run), "bold"), f": {_facts(card)}")
    if phases := _phases(card):
        yield hanging(phases, 0, "a step: ")
    if card.measured.ranks:
        # The gravest verdict on a rank colours it.
        culprits = {said.verdict.rank: STYLES[said.verdict.gravity] for said in reversed(card.verdicts)}
        yield from rank_table(card.measured.ranks, culprits)
    if card.failure is not None:
        yield hanging(Text(printable(how_failed(card.failure)), style="bold red"))
    for said, cost in zip(card.verdicts, card.costs, strict=True):
        yield from _verdict(said, cost)
    if card.judgement:
        healthy = card.judgement.startswith("healthy")
        yield hanging(Text(printable(card.judgement), style="green" if healthy else "yellow"))
    yield hanging(_taken(card))
    for name, path in (("report", card.report), ("data", card.folder)):
        if path is not None:
            yield hanging(f"{name}: {printable(str(path))}")


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
    return ", ".join(parts)


def _verdict(said: Said, cost: str) -> Iterator[RenderableType]:
    verdict = said.verdict
    until = f"for {words(said.end - said.begin)}" if said.over and said.end is not None else "to the end"
    yield Text.assemble((verdict.alert, STYLES[verdict.gravity]), f"  {printable(verdict.severity)}, {until}")
    for name, text in (
        ("why", verdict.description or verdict.summary),
        ("do", verdict.recommendation),
        ("cost", cost),
        ("runbook", verdict.runbook_url),
    ):
        if text:
            yield hanging(printable(text), 2, name, _LABEL)


def _taken(card: Card) -> str:
    parts = [f"{duration(card.processor_seconds)} of processor time"]
    if card.seconds >= _SHARE_SECONDS:
        parts.append(f"{card.processor_seconds / card.seconds:.1%} of one processor")
    if card.measured.hooks_share is not None:
        parts.append(f"{card.measured.hooks_share:.2%} of a step in its ranks")
    return f"laggard took {', '.join(parts)}"
