"""Judges a run by its traces: the method, thresholds and recommendations of the rules, for a few steps.

The rules take means over at least 16 steps and demand that a verdict holds over minutes. Here are all steps there are:
a score counts where it exceeds what chance makes of means over so few steps (four deviations, as the rules reckon it),
and in three quarters of the steps one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np

from laggard.shared.phases import Phase
from laggard_cli.diagnose.model import Diagnosis, Rank, Verdict
from laggard_cli.kineto.run import TracedRank, TracedRun, best_off
from laggard_cli.kineto.stragglers import (
    BY_TURNS,
    COMPARED,
    Score,
    chance_limit,
    compare,
    peers_own,
    phase_of,
    usual_limit,
)
from laggard_cli.pack import alert, threshold
from laggard_cli.past.templates import render
from laggard_cli.units import duration

#: A mean over fewer steps is no mean.
MIN_STEPS = 3
#: In so few steps a different rank may lead each by chance.
_ROAMING_STEPS = 8
_COMPARISON = "stragglers, data imbalance, communication-bound"
_NO_MESH = "no mesh in the traces says which ranks do the same work"


@dataclass(frozen=True)
class Judgement:
    """What the traces say, and what they cannot say and why."""

    diagnosis: Diagnosis
    #: Verdicts that were not reached, to the reason.
    open: tuple[tuple[str, str], ...]
    #: Whether anything was judged at all.
    judged: bool


def judge(run: TracedRun) -> Judgement:
    """Return the verdicts on a traced run."""
    verdicts: list[Verdict] = []
    unsaid: list[tuple[str, str]] = []
    judged = False
    if run.steps < MIN_STEPS:
        unsaid.append(("everything that is a mean", f"{run.steps} whole steps; trace at least {MIN_STEPS}"))
    elif not run.trains:
        why = "no step has a backward pass or an update: it is evaluation or inference"
        unsaid.append(("everything that is about training", why))
    else:
        judged = True
        scores = compare(run)
        verdicts = [*_stragglers(run, scores), *_shares(run), *_imbalance(run)]
        unsaid += [*_unsaid_of_scores(run, scores), *_unsaid_of_ranks(run)]
    facts = {"ranks_live": float(len(run.ranks)), "step_seconds": run.step_seconds}
    # What a trace cannot tell of waiting stands in what is unsaid.
    facts["ranks_waiting_known"] = float(sum(rank.steps.communicates for rank in run.ranks))
    if run.size is not None:
        facts["ranks_expected"] = float(run.size)
    facts["data_share"] = run.best_share(Phase.DATA)
    floor = _floor_share(run)
    if floor is not None:
        facts["communication_floor_share"] = floor
    ranks = sorted(
        (
            Rank(str(rank.rank), rank.own, rank.mean(Phase.COMMUNICATION) if rank.steps.communicates else None)
            for rank in run.ranks
        ),
        key=lambda rank: rank.own_seconds,
        reverse=True,
    )
    diagnosis = Diagnosis(run.name, tuple(verdicts), facts, tuple(ranks))
    return Judgement(diagnosis, (*unsaid, *_UNSAID), judged)


#: What no trace of some steps says.
_UNSAID = (
    ("stalls, deaths, missing ranks, restarts", "a rank writes its trace only when it goes on: laggard diagnose, hang"),
    ("leaks, regressions, thermal and power slow-down, goodput", "they show over minutes to days"),
    ("jitter, long tails, network bursts, contention", "they need 150 steps and what the hosts say"),
    ("checkpoints, evaluation, recompilation, garbage collection", "a trace does not mark them"),
)


def _unsaid_of_ranks(run: TracedRun) -> Iterator[tuple[str, str]]:
    of = f"{len(run.ranks)} of {run.size} ranks" if run.size else f"{len(run.ranks)} rank"
    if len(run.ranks) == 1 and run.size != 1:
        yield _COMPARISON, f"traces of {of}: waiting for peers and transfer look the same from one"
    elif len(run.ranks) > 1 and run.absent:
        absent = ", ".join(map(str, run.absent[:8])) + (", …" if len(run.absent) > 8 else "")  # noqa: PLR2004 - a line
        yield "the ranks without a trace, communication-bound", f"no trace of rank {absent}: they may be the slow ones"
    elif len(run.ranks) > 1 and not run.communicates:
        yield _COMPARISON, "no collective in the trace of every rank: who waits cannot be told"
    elif len(run.ranks) > 1 and run.aligned() is None:
        yield "data imbalance", "the marks of the ranks do not number the same steps"
    elif len(run.ranks) > 1 and run.steps < _ROAMING_STEPS:
        yield "data imbalance", f"{run.steps} steps; it needs {_ROAMING_STEPS}"
    if len(run.ranks) > 1:
        yield from _unsaid_of_groups(run)
    if all(rank.steps.device is None for rank in run.ranks):
        yield "idle GPU, exposed copies, host-bound", "no kernel in the traces: profile with ProfilerActivity.CUDA"


def _unsaid_of_groups(run: TracedRun) -> Iterator[tuple[str, str]]:
    if len(run.groups) > 1:
        names = ", ".join(sorted(run.groups))
        yield "slow pipeline stages, data imbalance", f"ranks are compared inside their peer groups alone: {names}"
        if run.staged:
            yield "communication-bound", "the least wait of a pipeline is its bubble, and not the transfer alone"
    elif run.unplaced:
        yield _COMPARISON, f"ranks send to one another, as pipeline stages do, and {_NO_MESH}"
    else:
        yield "slow pipeline stages", f"{_NO_MESH}: all are compared"


def _stragglers(run: TracedRun, scores: Sequence[Score]) -> Iterator[Verdict]:
    for score in scores:
        if score.ratio > chance_limit(run) and score.delays and score.by_turns <= BY_TURNS:
            rank = score.rank
            phase = phase_of(rank, [peer for peer in run.groups[rank.group] if peer is not rank])
            yield _verdict(
                "TrainingStraggler",
                run,
                rank=rank,
                phase=phase,
                value=score.ratio,
                description=f"Rank {rank.rank} takes {score.ratio:.2f} times as long as its peers for its own work in "
                f"a step, {duration(score.own)} against {duration(score.reference)}, clearly so in {score.led} of "
                f"{score.steps} steps, and waits {duration(score.waits_less)} less. "
                + (
                    "It is slow in more than one phase." if phase == "mixed" else f"The difference is in phase {phase}."
                ),
            )


def _unsaid_of_scores(run: TracedRun, scores: Sequence[Score]) -> Iterator[tuple[str, str]]:
    for score in scores:
        if score.ratio > usual_limit(run) and score.delays:
            what, longer = f"rank {score.rank.rank} as a straggler", f"{score.ratio:.2f} times as long as its peers"
            if score.ratio <= chance_limit(run):
                over = f"over {run.steps} steps may be chance up to {chance_limit(run):.2f}"
                yield what, f"{longer}, which {over}; trace more"
            elif score.by_turns > BY_TURNS:
                turns = f"ranks that take turns lead as often with probability {score.by_turns:.2f}"
                yield what, f"{longer}, in {score.led} of {score.steps} steps: {turns}; trace more"


def _floor_share(run: TracedRun) -> float | None:
    """Return the share of the step that the transfer itself takes: the least wait of the rank that waits least.

    ``None`` where that is not known, as in a pipeline, where it is bubble too.
    """
    if len(run.ranks) < COMPARED or run.absent or not run.communicates or run.staged:
        return None
    return min(float(rank.steps.phases[Phase.COMMUNICATION].min()) for rank in run.ranks) / run.step_seconds


def _starved_share(run: TracedRun) -> float | None:
    devices = [rank.steps.device for rank in run.ranks]
    return (
        best_off([float(each.starved.mean()) for each in devices if each]) / run.step_seconds if all(devices) else None
    )


@dataclass(frozen=True)
class _Share:
    """A verdict on all ranks: a share of the step beyond a threshold."""

    alert: str
    threshold: str
    phase: str
    share: Callable[[TracedRun], float | None]
    what: str


_SHARES = (
    _Share(
        "TrainingInputBound",
        "input_bound_share",
        "data",
        lambda run: run.best_share(Phase.DATA),
        "waiting for data even on the ranks that are supplied best",
    ),
    _Share(
        "TrainingCommunicationBound",
        "communication_bound_share",
        "communication",
        _floor_share,
        "exposed transfer even on the rank that waits least, so it is the transfer and no slower rank",
    ),
    _Share(
        "TrainingCopyBound",
        "copy_bound_share",
        "h2d",
        lambda run: run.best_share(Phase.H2D),
        "copying to the device with nothing beside it, even on the ranks that are best off",
    ),
    _Share(
        "TrainingHiddenSerialization",
        "serialization_share",
        "other",
        lambda run: run.best_share(Phase.OTHER),
        "work of the script outside of all phases, on the ranks that are best off too",
    ),
    _Share(
        "TrainingGpuUnderused",
        "serialization_share",
        "",
        _starved_share,
        "an idle GPU while the host is in forward, backward or the update: kernels run faster than it launches them",
    ),
)


def _shares(run: TracedRun) -> Iterator[Verdict]:
    for each in _SHARES:
        share = each.share(run)
        limit = threshold(each.threshold)
        if share is not None and share > limit:
            among = f", of the {len(run.ranks)} traced of {run.size}" if run.absent else ""
            yield _verdict(
                each.alert,
                run,
                phase=each.phase,
                value=share,
                description=f"Of each step of {duration(run.step_seconds)}, {share:.0%} is {each.what}{among} "
                f"(limit {limit:.0%}).",
            )


def _imbalance(run: TracedRun) -> Iterator[Verdict]:
    own = run.aligned() if len(run.groups) == 1 and not run.unplaced else None
    if own is None or len(own) < COMPARED or run.absent or not run.communicates or len(own[0]) < _ROAMING_STEPS:
        return
    table = np.array(own)
    lost = float((table.max(axis=0) - table.mean(axis=0)).mean() / run.step_seconds)
    means = table.mean(axis=1)
    led = np.bincount(table.argmax(axis=0), minlength=len(own)) / table.shape[1]
    steady = float(means.max() / peers_own(means)) < threshold("straggler_score")
    if lost > threshold("imbalance_share") and steady and led.max() < threshold("persistence_share"):
        yield _verdict(
            "TrainingDataImbalance",
            run,
            value=lost,
            description=f"In the mean step, the ranks wait for the slowest of them for {lost:.0%} of its "
            f"{duration(run.step_seconds)}, and it is a different one each time: none is the slowest in more than "
            f"{led.max():.0%} of {table.shape[1]} steps, and over all of them their own times agree within "
            f"{means.max() / means.min() - 1:.0%}.",
        )


def _verdict(
    name: str, run: TracedRun, *, value: float, description: str, rank: TracedRank | None = None, phase: str = ""
) -> Verdict:
    rule = alert(name)
    began = datetime.fromtimestamp(run.ranks[0].began, timezone.utc).isoformat(timespec="seconds")
    return Verdict(
        alert=name,
        severity=rule["labels"]["severity"],
        run=run.name,
        rank="" if rank is None else str(rank.rank),
        phase=phase,
        host="" if rank is None else rank.host,
        since=f"{began}, when the trace begins",
        value=value,
        summary=rule["annotations"]["title"],
        description=description,
        recommendation=_recommendation(rule, phase),
        runbook_url=rule["annotations"]["runbook_url"],
    )


def _recommendation(rule: dict[str, Any], phase: str) -> str:
    """Return what an alert recommends where a phase is at fault; a trace has no answers to a template's queries."""
    template = rule["annotations"]["recommendation"]
    return " ".join(render(template, {"training_phase": phase}, 0.0, lambda _: []).split())
