"""Why a run is held to be healthy, or not judged; and what a report does not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from laggard_cli.report.arrays import Flags, any_rank, known, mean, stretches
from laggard_cli.report.costs import Losses, excess, step, words
from laggard_cli.report.history import History
from laggard_cli.report.verdicts import Problem

_FLOOR = "run:training_communication_floor_share:ratio"
#: Shares of a step, the threshold of the alert on each, and what they are.
_SHARES = (
    ("run:training_data_share:ratio", "input_bound_share", "waiting for data"),
    (_FLOOR, "communication_bound_share", "transfer"),
    ("run:training_imbalance_share:ratio", "", "waiting for slower ranks"),
)
#: Ranks that are named.
_NAMED = 8
#: Of what each rank should have reported, so much must be there for nothing to be said of it.
_COMPLETE = 0.95


@dataclass(frozen=True)
class Judged:
    """What is said of the run as a whole, and why."""

    state: str
    """``wrong``, ``healthy`` or ``unknown``."""
    headline: str
    reasons: list[str]


def judged(history: History, problems: Sequence[Problem], says: Sequence[str], unknown: Sequence[str]) -> Judged:
    """Return what is said of the run as a whole.

    Args:
        history: of the run.
        problems: the gravest first.
        says: of each, what is wrong.
        unknown: what is missing.
    """
    grave = [f"{said}." for problem, said in zip(problems, says, strict=True) if problem.severity != "info"]
    length = words(history.span.end - history.span.begin)
    if grave:
        return Judged("wrong", grave[0], grave[1:])
    if not len(known(history.own)):
        return Judged("unknown", f"Not judged: in these {length} the ranks could not be compared.", list(unknown))
    silent = _uncompared(history)
    if silent:
        ranks = "1 rank was" if silent == 1 else f"{silent} ranks were"
        headline = f"No verdict above info in these {length}, and {ranks} never compared."
        return Judged("unknown", headline, [*_checks(history), *unknown])
    return Judged("healthy", f"Healthy: no verdict above info in these {length}.", list(_checks(history)))


def _checks(history: History) -> Iterator[str]:
    """Yield what was looked at, and how far it is from a verdict."""
    score = [mean(values) for values in excess(history)]
    seen = [row for row, value in enumerate(score) if np.isfinite(value)]
    yield f"{len(seen)} of {max(history.expected, len(history.ranks))} ranks were compared."
    if len(seen) > 1:
        worst = max(seen, key=lambda row: score[row])
        needs = _needs(history.limits.get("straggler_score"), ".2f")
        yield f"The slowest, rank {history.ranks[worst]}, needed {score[worst]:.2f} times as long as its peers{needs}."
    staged = mean(history.fact("run:training_stages:count")) > 1
    for series, threshold, doing in _SHARES:
        values = history.fact(series)
        if staged and series == _FLOOR:
            threshold, doing = "", "transfer and bubble"  # noqa: PLW2901 - no verdict on what is both
        if len(known(values)):
            needs = _needs(history.limits.get(threshold), ".0%")
            yield f"On average {max(0.0, mean(values)):.0%} of a step went into {doing}{needs}."
    still = _longest_still(history)
    if still:
        yield f"The longest time in which no rank ended a step was {words(still)}."
    else:
        yield "There was no time in which no rank ended a step."


def _uncompared(history: History) -> int:
    """Return how many ranks of the run had no own time at any moment."""
    compared = np.isfinite(history.own).any(axis=1).sum()
    return int(max(history.expected, len(history.ranks)) - compared)


def _needs(limit: float | None, form: str) -> str:
    return "" if limit is None else f"; a verdict needs {limit:{form}}"


def _longest_still(history: History) -> float:
    """Return the longest time in seconds in which ranks reported and no step ended."""
    reported, ended = any_rank(history.reports), any_rank(step(history)[None, :])
    first = int(ended.argmax())
    return history.span.step * max((end - begin for begin, end in stretches((reported & ~ended)[first:])), default=0)


def missing(history: History, losses: Losses | None, *, exporters: bool, remarks: Iterable[str]) -> list[str]:
    """Return what is not known, and what that means for the rest.

    Args:
        history: of the run.
        losses: where its time went, if that is known.
        exporters: whether any node exporter shows a rank of it.
        remarks: what did not work while verdicts were read.
    """
    return [*_of_ranks(history), *_of_the_rest(history, losses, exporters=exporters), *remarks]


def _of_ranks(history: History) -> Iterator[str]:
    there: Flags = np.isfinite(history.reports)
    if not there.any():
        yield "No rank's own metrics are there, so nothing can be compared: are they scraped, does a collector arrive?"
        return
    if not len(known(history.own)):
        yield "Ranks report and no step counts yet: a comparison needs 16 steps of every rank after the warm-up."
    if len(known(history.own)):
        silent = [rank for rank, own in zip(history.ranks, history.own, strict=True) if not np.isfinite(own).any()]
        if silent:
            named = ", ".join(silent[:_NAMED]) + (", …" if len(silent) > _NAMED else "")
            yield (
                f"Never compared, since too few samples of them arrive or no step counts: rank {named}. Metrics of all "
                "ranks of a run are scraped equally often, each minute at least."
            )
    absent = history.expected - len(history.ranks)
    if absent > 0:
        yield f"{absent} of {history.expected} ranks never reported a step; what is said of ranks leaves them out."
    # Before the first report and after the last one the run was not there.
    seen = np.flatnonzero(there.any(axis=0))
    share = there[:, seen[0] : seen[-1] + 1].mean(axis=1)
    if share.min() < _COMPLETE:
        worst = int(share.argmin())
        yield (
            f"{1 - share.mean():.0%} of what ranks should have reported is not there (of rank {history.ranks[worst]} "
            f"{1 - share[worst]:.0%}). Pictures show gaps; means leave them out."
        )
    if not len(known(history.wait)):
        yield "No rank's wait for its peers is there, so nobody can be told to be the one that the others wait for."


def _of_the_rest(history: History, losses: Losses | None, *, exporters: bool) -> Iterator[str]:
    unmeasured = sorted(signal for signal, value in history.signals.items() if value == 0)
    if unmeasured:
        yield (
            f"Not measured by every rank: {', '.join(unmeasured)}. Rules that need it do not judge, and pictures show "
            "what ranks did measure."
        )
    for signal, share in sorted(history.signals.items()):
        if 0 < share < 1:
            yield f"Measured by every rank in {share:.0%} of the time only: {signal}. Then only rules judge by it."
    if not exporters:
        yield "No node exporter shows the state files of this run: where a stuck or dead rank stands cannot be told."
    if not history.information:
        yield "training_run_info is not there: what the run ran on is not known."
    if losses is None:
        yield "Goodput and losses are not recorded: they need the first minutes of a run, and the goodput rules."
    elif losses.price is None:
        yield "No price is recorded (threshold gpu_hour_price), so losses are told in hours and not as money."
