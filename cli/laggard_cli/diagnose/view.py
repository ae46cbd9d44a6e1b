"""A diagnosis as text for a terminal: the verdict first, then the evidence, then what to do."""

from __future__ import annotations

import math
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from laggard_cli.diagnose.model import Diagnosis, Failure, Rank, Verdict
from laggard_cli.past.times import told
from laggard_cli.terminal import printable
from laggard_cli.units import duration

#: Ranks shown: the slowest tell, a list of thousands does not.
_MAX_RANKS = 8
#: From here on it is shown by how much slow ranks lengthen each step.
_SLOWDOWN = 1.005
#: Characters of the longest bar.
_BAR = 24
_STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "bold cyan"}


def show(console: Console, diagnoses: list[Diagnosis], silent: str = "") -> None:
    """Print the diagnoses; ``silent`` is said of a run without a verdict, in place of why it is judged healthy."""
    console.print(view(diagnoses, silent))


def view(diagnoses: list[Diagnosis], silent: str = "") -> RenderableType:
    """Return what is shown of the diagnoses."""
    if not diagnoses:
        return Text("No training run is known to Prometheus now.")
    return Group(*(_one(_printable(diagnosis), silent) for diagnosis in diagnoses))


def _printable(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis with every text as a terminal may have it."""
    verdicts = tuple(
        replace(verdict, **{name: printable(text) for name, text in vars(verdict).items() if isinstance(text, str)})
        for verdict in diagnosis.verdicts
    )
    ranks = tuple(replace(rank, rank=printable(rank.rank)) for rank in diagnosis.ranks)
    failure = diagnosis.failure and replace(
        diagnosis.failure, **{name: printable(text) for name, text in vars(diagnosis.failure).items()}
    )
    excluded = {printable(reason): count for reason, count in diagnosis.excluded.items()}
    standing_out = {printable(rank): score for rank, score in diagnosis.standing_out.items()}
    held_back = diagnosis.held_back and replace(
        diagnosis.held_back,
        rank=printable(diagnosis.held_back.rank),
        vetoes=tuple(map(printable, diagnosis.held_back.vetoes)),
    )
    uncompared_ranks = {printable(rank): printable(reason) for rank, reason in diagnosis.uncompared_ranks.items()}
    return replace(
        diagnosis,
        run=printable(diagnosis.run),
        cluster=printable(diagnosis.cluster),
        verdicts=verdicts,
        ranks=ranks,
        standing_out=standing_out,
        held_back=held_back,
        excluded=excluded,
        failure=failure,
        uncompared_ranks=uncompared_ranks,
    )


def _one(diagnosis: Diagnosis, silent: str) -> RenderableType:
    parts: list[RenderableType] = [
        Text.assemble(("run ", "dim"), (diagnosis.run, "bold"), _cluster(diagnosis), _facts(diagnosis))
    ]
    if diagnosis.verdicts:
        parts += [Padding(_verdict(verdict), (1, 0, 0, 2)) for verdict in diagnosis.verdicts]
    elif diagnosis.failure is not None:
        parts.append(Padding(Text(how_failed(diagnosis.failure), style="bold red"), (0, 0, 0, 2)))
    elif diagnosis.unjudged:
        parts += [Padding(Text(f"not judged: {reason}"), (0, 0, 0, 2)) for reason in diagnosis.unjudged]
    elif diagnosis.standing_out and not silent:
        held = diagnosis.held_back
        said = held.said() if held is not None else why_not_yet(diagnosis.standing_out)
        parts.append(Padding(Text(said, style="yellow"), (0, 0, 0, 2)))
    else:
        style = "yellow" if diagnosis.left_out else "green"
        parts.append(Padding(Text(silent or why_healthy(diagnosis), style=style), (0, 0, 0, 2)))
    if diagnosis.verdicts and diagnosis.held_back is not None and not silent:
        parts.append(Padding(Text(diagnosis.held_back.said(), style="yellow"), (0, 0, 0, 2)))
    # Beside a verdict too: there may be another culprit among them.
    parts += [Padding(Text(said, style="yellow"), (0, 0, 0, 2)) for said in diagnosis.left_out]
    if diagnosis.ranks:
        parts.append(Padding(rank_table(diagnosis.ranks), (1, 0, 1, 2)))
    return Group(*parts)


def how_failed(failure: Failure) -> str:
    """Return how a run ended that did not end cleanly, as a sentence."""
    how = {
        "exception": f"by the exception {failure.ended_with}",
        "exit": f"with exit code {failure.ended_with}",
        "signal": f"by {failure.ended_with}",
    }.get(failure.ended_by, "without a word, as by SIGKILL, a fault in native code or os._exit")
    if not failure.rank:
        return f"failed {told(failure.at)} {how}; which rank ended first is not known"
    where = f" on host {failure.host}" if failure.host else ""
    return f"failed {told(failure.at)}: rank {failure.rank}{where} ended first, in phase {failure.phase}, {how}"


def _cluster(diagnosis: Diagnosis) -> str:
    return f"  cluster {diagnosis.cluster}" if diagnosis.cluster else ""


def why_not_yet(standing_out: dict[str, float]) -> str:
    """Return why the rank that stands out most has no verdict, as a sentence."""
    rank, score = max(standing_out.items(), key=lambda each: each[1])
    return (
        f"no verdict yet: rank {rank} needs {score:.3g} times as long as its peers for its own part of a step; "
        "a verdict waits until that lasts"
    )


def why_healthy(diagnosis: Diagnosis) -> str:
    """Return why a run without a verdict is judged healthy, as a sentence; some rank of it has an own time."""
    own = sorted(rank.own_seconds for rank in diagnosis.ranks)
    median = own[(len(own) - 1) // 2]
    facts = diagnosis.facts
    reasons = ["no alert fires" if diagnosis.left_out else "healthy: no alert fires"]
    if len(own) > 1 and median:
        reasons.append(f"the slowest rank needs {own[-1] / median - 1:.1%} more than the median of {len(own)} ranks")
        if own[-1] / median > facts.get("straggler_threshold", math.inf):
            reasons = ["no alert fires", f"{reasons[-1]}, and the others do not wait for it, or not yet"]
    if facts.get("ranks_live", 0) == facts.get("ranks_expected"):
        reasons.append("no rank is missing")
    if "data_share" in facts:
        reasons.append(f"waiting for data is {facts['data_share']:.0%} of a step")
    return "; ".join(reasons)


def _facts(diagnosis: Diagnosis) -> str:
    facts = diagnosis.facts
    parts: list[str] = []
    if "ranks_live" in facts:
        expected = f" of {facts['ranks_expected']:.0f}" if "ranks_expected" in facts else ""
        parts.append(f"{facts['ranks_live']:.0f}{expected} ranks")
    if "step_seconds" in facts:
        parts.append(f"step {duration(facts['step_seconds'])}")
    if facts.get("slowdown", 0) >= _SLOWDOWN:
        parts.append(f"slow-down {facts['slowdown']:.3g}\u00d7")
    if "data_share" in facts:
        parts.append(f"data {facts['data_share']:.0%}")
    if "communication_floor_share" in facts:
        floor = "transfer and bubble" if facts.get("stages", 1) > 1 else "transfer"
        parts.append(f"{floor} {facts['communication_floor_share']:.0%}")
    return "".join(f"  {part}" for part in parts)


def _verdict(verdict: Verdict) -> RenderableType:
    where = [f"rank {verdict.rank}"] if verdict.rank else []
    where += [f"phase {verdict.phase}"] if verdict.phase else []
    where += [f"peer group {verdict.peer_group}"] if verdict.peer_group and not verdict.rank else []
    where += [f"host {verdict.host}"] if verdict.host else []
    title = Text.assemble((verdict.alert, _STYLES[verdict.gravity]), f"  {verdict.severity}")
    if where:
        title.append("  " + ", ".join(where), style="bold")
    details = Table.grid(padding=(0, 1))
    details.add_column(style="dim", no_wrap=True)
    details.add_column(overflow="fold")
    for name, said in (
        ("why", verdict.description or verdict.summary),
        ("do", verdict.recommendation),
        ("since", told(verdict.since)),
        ("runbook", verdict.runbook_url),
    ):
        if said:
            # A text, or what is in brackets would be taken for a style.
            details.add_row(name, Text(said))
    return Group(title, details)


def rank_table(ranks: tuple[Rank, ...]) -> RenderableType:
    """Return the slowest ranks with their own time and wait."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("rank", justify="right")
    table.add_column("own time", justify="right")
    table.add_column("waits", justify="right")
    table.add_column("")
    longest = max(rank.own_seconds + (rank.wait_seconds or 0) for rank in ranks)
    for rank in ranks[:_MAX_RANKS]:
        waits = "unknown" if rank.wait_seconds is None else duration(rank.wait_seconds)
        table.add_row(Text(rank.rank), duration(rank.own_seconds), waits, _bar(rank, longest))
    if len(ranks) > _MAX_RANKS:
        table.caption = f"the {_MAX_RANKS} slowest of {len(ranks)} ranks"
    return table


def _bar(rank: Rank, longest: float) -> str:
    parts = (rank.own_seconds, rank.wait_seconds or 0)
    own, wait = (round(_BAR * min(max(0.0, part / longest), 1.0)) if longest > 0 else 0 for part in parts)
    return "█" * own + "░" * wait
