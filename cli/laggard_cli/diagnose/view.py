"""A diagnosis as text for a terminal: the verdict first, then the evidence, then what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from laggard_cli.console import hanging
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
_OWN, _WAIT = "█", "░"
_LEGEND = f"{_OWN} own time, {_WAIT} waits for peers"
#: Characters of the column of labels.
_LABEL = 8
#: How a terminal shows each severity.
STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "bold cyan"}


def show(console: Console, diagnoses: list[Diagnosis], silent: str = "") -> None:
    """Print the diagnoses; ``silent`` is said of a run without a verdict, in place of why it is judged healthy."""
    # An address may be wider than the terminal, which then breaks it without cutting it.
    console.print(view(diagnoses, silent), crop=False)


def view(diagnoses: list[Diagnosis], silent: str = "", which: str = "slowest") -> RenderableType:
    """Return what is shown of the diagnoses; ``which`` is the word for the ranks that come first."""
    if not diagnoses:
        return Text(
            "No training run is known to Prometheus now. Where one trains, laggard doctor says why. "
            "Where one has ended, --run NAME shows how."
        )
    return Group(*(_one(_printable(diagnosis), silent, which) for diagnosis in diagnoses))


def one_rank(diagnoses: list[Diagnosis], number: str) -> RenderableType:
    """Return what is known of one rank: of each run its verdicts, its own time, and how it compares."""
    parts: list[RenderableType] = []
    for diagnosis in map(_printable, diagnoses):
        own = [rank for rank in diagnosis.ranks if rank.rank == number]
        verdicts = [verdict for verdict in diagnosis.verdicts if verdict.rank == number]
        reason = diagnosis.uncompared_ranks.get(number)
        if not own and not verdicts and reason is None:
            continue
        parts.append(hanging(Text.assemble(("run ", "dim"), (diagnosis.run, "bold"), f"  rank {number}")))
        for verdict in verdicts:
            parts += [Text(), *_verdict(verdict)]
        if not verdicts:
            parts.append(hanging("no verdict names it", 2))
        if reason is not None:
            parts.append(hanging(f"not compared: {reason}", 2, style="yellow"))
        if own:
            times = sorted(rank.own_seconds for rank in diagnosis.ranks)
            median = duration(times[(len(times) - 1) // 2])
            parts += [Text(), *rank_table(tuple(own), {})]
            if len(times) > 1:
                parts.append(hanging(f"the median of {len(times)} ranks is {median}", 2))
    return Group(*parts) if parts else Text(f"no run has a rank {number} that is known")


def _printable(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis with every text as a terminal may have it."""
    verdicts = tuple(
        replace(verdict, **{name: printable(text) for name, text in vars(verdict).items() if isinstance(text, str)})
        for verdict in diagnosis.verdicts
    )
    ranks = tuple(replace(rank, rank=printable(rank.rank)) for rank in diagnosis.ranks)
    failure = diagnosis.failure and replace(
        diagnosis.failure,
        **{name: printable(text) for name, text in vars(diagnosis.failure).items() if isinstance(text, str)},
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
        unread=printable(diagnosis.unread),
        failure=failure,
        uncompared_ranks=uncompared_ranks,
    )


def _one(diagnosis: Diagnosis, silent: str, which: str) -> RenderableType:
    title = Text.assemble(("run ", "dim"), (diagnosis.run, "bold"), _cluster(diagnosis), _facts(diagnosis))
    parts: list[RenderableType] = [hanging(title)]
    if diagnosis.verdicts and diagnosis.unread:
        # First: an alert on each rank may be there for no other reason.
        parts.append(hanging(diagnosis.unread, 2, style="yellow"))
    for verdict in diagnosis.verdicts:
        parts += [Text(), *_verdict(verdict)]
    if not diagnosis.verdicts:
        parts += _without_verdict(diagnosis, silent)
    parts += [hanging(printable(command), 2, "see", _LABEL) for command in diagnosis.see]
    if diagnosis.verdicts and diagnosis.held_back is not None and not silent:
        parts.append(hanging(diagnosis.held_back.said(), 2, style="yellow"))
    # Beside a verdict too: there may be another culprit among them.
    parts += [hanging(said, 2, style="yellow") for said in diagnosis.left_out]
    if diagnosis.ranks:
        # The gravest verdict on a rank colours it.
        culprits = {verdict.rank: STYLES[verdict.gravity] for verdict in reversed(diagnosis.verdicts)}
        parts += [Text(), *rank_table(diagnosis.ranks, culprits, which), Text()]
    return Group(*parts)


def _without_verdict(diagnosis: Diagnosis, silent: str) -> list[RenderableType]:
    """Return why no verdict is there: the run is over, not judged, not judged yet, or healthy."""
    if diagnosis.failure is not None:
        return [hanging(how_failed(diagnosis.failure), 2, style="bold red")]
    if diagnosis.ended is not None:
        return [hanging(diagnosis.ended.said(told(diagnosis.ended.at)), 2)]
    if diagnosis.unjudged:
        return [hanging(f"not judged: {reason}", 2) for reason in diagnosis.unjudged]
    if diagnosis.standing_out and not silent:
        held = diagnosis.held_back
        said = held.said() if held is not None else why_not_yet(diagnosis.standing_out)
        return [hanging(said, 2, style="yellow")]
    style = "yellow" if diagnosis.left_out else "green"
    return [hanging(silent or why_healthy(diagnosis), 2, style=style)]


def how_failed(failure: Failure) -> str:
    """Return how a run ended that did not end cleanly, as a sentence."""
    how = {
        "exception": f"by the exception {failure.ended_with}",
        "exit": f"with exit code {failure.ended_with}",
        "signal": f"by {failure.ended_with}",
    }.get(
        failure.ended_by,
        f"without a word ({failure.ended_with})"
        if failure.ended_with
        else "without a word, as by SIGKILL, a fault in native code or os._exit",
    )
    if failure.ended_after:
        return f"failed {told(failure.at)} {how}, after it had made no progress, as TrainingStalled reported"
    where = f" on host {failure.host}" if failure.host else ""
    if not failure.rank:
        only = f", only rank {failure.only} is known to have failed" if failure.only else ""
        finished = f"rank {failure.finished[0]}" if len(failure.finished) == 1 else f"{len(failure.finished)} ranks"
        lost = f"; {finished} ended cleanly, which the others may have lost" if failure.finished else ""
        return f"failed {told(failure.at)}{where} {how}; which rank ended first is not known{only}{lost}"
    return f"failed {told(failure.at)}: rank {failure.rank}{where} ended first, in phase {failure.phase}, {how}"


def _cluster(diagnosis: Diagnosis) -> str:
    return f"  cluster {diagnosis.cluster}" if diagnosis.cluster else ""


def why_not_yet(standing_out: dict[str, float]) -> str:
    """Return why the rank that stands out most has no verdict, as a sentence."""
    rank, score = max(standing_out.items(), key=lambda each: each[1])
    return (
        f"no verdict yet: rank {rank} needs {score:.3g} times as long as its peers for its own work in a step; "
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
            # The waits beside it may show more than the rules have found by now.
            reasons = ["no alert fires", f"{reasons[-1]}; the rules have not found so far that the others wait for it"]
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


def _verdict(verdict: Verdict) -> Iterator[RenderableType]:
    where = [f"rank {verdict.rank}"] if verdict.rank else []
    where += [f"phase {verdict.phase}"] if verdict.phase else []
    where += [f"peer group {verdict.peer_group}"] if verdict.peer_group and not verdict.rank else []
    where += [f"host {verdict.host}"] if verdict.host else []
    style = STYLES[verdict.gravity]
    title = Text.assemble((verdict.alert, style), f"  {verdict.severity}")
    if where:
        title.append("  " + ", ".join(where), style=style)
    yield hanging(title, 2)
    for name, said in (
        ("why", verdict.description or verdict.summary),
        ("do", verdict.recommendation),
        ("since", told(verdict.since)),
        ("runbook", verdict.runbook_url),
    ):
        if said:
            yield hanging(said, 2, name, _LABEL)


def rank_table(
    ranks: tuple[Rank, ...], culprits: Mapping[str, str], which: str = "slowest"
) -> Iterator[RenderableType]:
    """Yield the first ranks, a line each, and what their bars mean."""
    shown = ranks[:_MAX_RANKS]
    longest = max(rank.own_seconds + (rank.wait_seconds or 0) for rank in ranks)
    heads = ("rank", "own time", "waits")
    rows = [
        (rank.rank, duration(rank.own_seconds), "unknown" if rank.wait_seconds is None else duration(rank.wait_seconds))
        for rank in shown
    ]
    widths = [max(cell_len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(" " * (width - cell_len(cell)) + cell for cell, width in zip(cells, widths, strict=True))

    yield hanging(Text(line(heads), style="dim"), 2)
    for rank, row in zip(shown, rows, strict=True):
        text = Text.assemble(line(row), "  ", _bar(rank, longest), style=culprits.get(rank.rank, ""), no_wrap=True)
        text.overflow = "crop"
        yield Text.assemble("  ", text, no_wrap=True, overflow="crop")
    yield hanging(_LEGEND, 2, style="dim")
    if len(ranks) > _MAX_RANKS:
        yield hanging(f"the {_MAX_RANKS} {which} of {len(ranks)} ranks", 2, style="dim")


def _bar(rank: Rank, longest: float) -> str:
    parts = (rank.own_seconds, rank.wait_seconds or 0)
    own, wait = (round(_BAR * min(max(0.0, part / longest), 1.0)) if longest > 0 else 0 for part in parts)
    return _OWN * own + _WAIT * wait
