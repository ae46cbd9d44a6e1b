"""Why a rank that stands out is not named: the step or the veto that holds its verdict back, and until when."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from promql_parser import parse_duration

from laggard_cli.clusters import RUN, Run, run_of
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus

_RANK, _WINDOW, _VETO = "training_rank", "training_window", "training_veto"
_SHARE = "run_rank:training_straggler_share:ratio"
_STEPS = "run:training_window_steps:sustained"
_VETOES = "run_rank:training_straggler_veto:info"
_LIMITS = 'laggard_threshold{name=~"persistence_share|window_steps"}'
#: From the shortest to the longest; the first that holds enough steps decides. The longest asks for none.
_WINDOWS = ("short", "medium", "long", "longest")
#: What each veto means, of the rank that has it.
_SAID = {
    "small_excess": "its excess is small, and a small one must last for longer",
    "uneven_steps": "the run's steps are few and uneven, so that one rank may be slow by chance",
    "few_steps": "steps were few, so that its mean may still hold a hiccup",
    "hiccup": "it was far too slow for a moment, and is not now",
}


@dataclass(frozen=True)
class HeldBack:
    """What a verdict on a rank waits for."""

    rank: str
    score: float
    """How many times its peers' own time it needs."""
    window: str
    """Which window decides, ``short``, ``medium``, ``long`` or ``longest``."""
    window_seconds: float | None
    """How long that is, where the server tells its rules."""
    share: float
    """In which share of the window's evaluations it stood out."""
    needed_share: float
    vetoes: tuple[str, ...]
    """Why it is not named all the same: values of the label ``training_veto``."""

    @property
    def seconds(self) -> float | None:
        """After which time it is named if it goes on as it is; None where nobody knows, or a veto is in the way."""
        if self.window_seconds is None or self.vetoes:
            return None
        return max(0.0, self.needed_share - self.share) * self.window_seconds

    def said(self) -> str:
        """Return it as a sentence."""
        start = (
            f"no verdict yet: rank {self.rank} needs {self.score:.3g} times as long as its peers for its own work in a "
            "step; "
        )
        if self.vetoes:
            return start + "; ".join(_SAID.get(veto, veto) for veto in self.vetoes)
        where = "the window" if self.window_seconds is None else f"the last {_length(self.window_seconds)}"
        after = f", in {_length(self.seconds)} if it lasts" if self.seconds else ""
        if self.share >= self.needed_share:
            after = " at the next evaluation; if it is not, laggard doctor says whether the rule fails"
        return (
            f"{start}it stood out in {self.share:.0%} of the evaluations of {where}, and is named from "
            f"{self.needed_share:.0%} on{after}"
        )


def held_back(
    prometheus: Prometheus, standing_out: Mapping[Run, Mapping[str, float]], at: float | None
) -> dict[Run, HeldBack]:
    """Return for each run what holds the verdict back on the rank that stands out most; nothing of older rules."""
    if not any(standing_out.values()):
        return {}
    limits = {sample.labels["name"]: sample.value for sample in prometheus.query(_LIMITS, at, by=("name",))}
    if not limits.keys() >= {"persistence_share", "window_steps"}:
        return {}
    shares: dict[tuple[Run, str], dict[str, float]] = defaultdict(dict)
    for sample in prometheus.query(_SHARE, at, by=(RUN, _RANK, _WINDOW)):
        shares[run_of(sample), sample.labels[_RANK]][sample.labels[_WINDOW]] = sample.value
    steps: dict[Run, dict[str, float]] = defaultdict(dict)
    for sample in prometheus.query(_STEPS, at, by=(RUN, _WINDOW)):
        steps[run_of(sample)][sample.labels[_WINDOW]] = sample.value
    vetoes: dict[tuple[Run, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for sample in prometheus.query(_VETOES, at, by=(RUN, _RANK, _WINDOW, _VETO)):
        vetoes[run_of(sample), sample.labels[_RANK]][sample.labels[_WINDOW]].append(sample.labels[_VETO])
    lengths = _lengths(prometheus)
    found: dict[Run, HeldBack] = {}
    for run, scores in standing_out.items():
        rank, score = max(scores.items(), key=lambda each: each[1])
        window = next((w for w in _WINDOWS if steps[run].get(w, 0) >= limits["window_steps"]), _WINDOWS[-1])
        share = shares[run, rank].get(window)
        if share is None:
            continue
        found[run] = HeldBack(
            rank=rank,
            score=score,
            window=window,
            window_seconds=lengths.get(window),
            share=share,
            needed_share=limits["persistence_share"],
            vetoes=tuple(sorted(vetoes[run, rank][window])) if share >= limits["persistence_share"] else (),
        )
    return found


def _lengths(prometheus: Prometheus) -> dict[str, float]:
    """Return the seconds of each window as the server's rules have them, which depends on their profile."""
    try:
        rules = prometheus.recorded(_SHARE)
    except CommandError:
        return {}  # a querier that evaluates no rules
    found: dict[str, float] = {}
    for labels, query in rules:
        length = re.search(r"\[(\w+)\]", query)
        # A server that answers anything may have anything in there.
        with suppress(ValueError):
            found[labels.get(_WINDOW, "")] = parse_duration(length[1] if length else "").total_seconds()
    return found


def _length(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"  # noqa: PLR2004 - as people say it
