"""Counts over many cases: precision, recall, wrong ranks, time to detect, and what was taken for what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from evaluation.job import Case
from laggard_cli.replay.truth import Expected, Fired, Outcome, Truth, judge


@dataclass(frozen=True)
class Judged:
    """A case, and what became of each of its alerts."""

    case: Case
    outcomes: tuple[Outcome, ...]


def judge_case(case: Case, fired: Iterable[Fired]) -> Judged:
    """Compare what fired with what is known of the case."""
    expected = tuple(
        Expected(alert, frozenset(map(str, ranks)), phase, begin, end)
        for alert, ranks, phase, begin, end in case.expected
    )
    return Judged(case, tuple(judge(Truth(case.job.run, expected, frozenset(case.allowed)), fired)))


def summary(judged: list[Judged]) -> dict[str, Any]:
    """Return everything that the report shows, as plain data."""
    alerts = sorted({outcome.alert for each in judged for outcome in each.outcomes})
    healthy = [each for each in judged if not each.case.expected]
    return {
        "cases": len(judged),
        "pooled": _rates([outcome for each in judged for outcome in each.outcomes]),
        "alerts": {alert: _alert(alert, judged) for alert in alerts},
        "healthy": {
            "cases": len(healthy),
            "with_alerts": sum(any(o.kind != "found" for o in each.outcomes) for each in healthy),
        },
        "sizes": _by(judged, lambda each: str(each.case.job.ranks)),
        "steps": _by(judged, lambda each: _step_class(each.case.job.own)),
        "effects": _by(
            [each for each in judged if each.case.scenario.startswith("slow") and "effect" in each.case.facts],
            lambda each: _effect_class(each.case.facts["effect"]),
        ),
        "confusion": _confusion(judged),
        "wrong": [_line(each, outcome) for each in judged for outcome in each.outcomes if _is_wrong(outcome)],
    }


def _is_wrong(outcome: Outcome) -> bool:
    return outcome.kind != "found" or not outcome.phase_right


def _rates(outcomes: list[Outcome]) -> dict[str, Any]:
    kinds = Counter(outcome.kind for outcome in outcomes)
    found, wrong = kinds["found"], kinds["false"] + kinds["wrong rank"]
    delays = [outcome.delay for outcome in outcomes if outcome.delay is not None]
    return {
        "found": found,
        "missed": kinds["missed"],
        "false": kinds["false"],
        "wrong_rank": kinds["wrong rank"],
        "wrong_phase": sum(not outcome.phase_right for outcome in outcomes),
        "precision": found / (found + wrong) if found + wrong else None,
        "recall": found / (found + kinds["missed"]) if found + kinds["missed"] else None,
        "median_delay": median(delays) if delays else None,
    }


def _alert(alert: str, judged: list[Judged]) -> dict[str, Any]:
    return {
        **_rates([outcome for each in judged for outcome in each.outcomes if outcome.alert == alert]),
        "positive_cases": sum(any(name == alert for name, *_ in each.case.expected) for each in judged),
        "near_misses": sum(alert in each.case.near for each in judged),
    }


def _by(judged: list[Judged], key: Any) -> dict[str, Any]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for each in judged:
        groups[key(each)] += each.outcomes
    return {name: _rates(outcomes) for name, outcomes in groups.items()}


def _step_class(own: float) -> str:
    for limit, name in ((0.1, "< 0.1 s"), (1, "0.1-1 s"), (3, "1-3 s"), (10, "3-10 s"), (30, "10-30 s")):
        if own < limit:
            return name
    return "30-60 s"


def _effect_class(effect: float) -> str:
    for limit, name in ((1.2, "1.15-1.2"), (1.3, "1.2-1.3"), (1.5, "1.3-1.5"), (2.0, "1.5-2")):
        if effect < limit:
            return name
    return "2-3"


def _confusion(judged: list[Judged]) -> dict[str, dict[str, int]]:
    """Return, for each kind of case (what must fire), how many cases each alert fired in, or was missed in."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for each in judged:
        truth = " + ".join(sorted({alert for alert, *_ in each.case.expected})) or "nothing"
        table[truth]["cases"] += 1
        fired = {outcome.alert for outcome in each.outcomes if outcome.kind != "missed"}
        missed = {f"no {outcome.alert}" for outcome in each.outcomes if outcome.kind == "missed"}
        table[truth].update(fired | missed)
    return {truth: dict(counts) for truth, counts in table.items()}


def _line(each: Judged, outcome: Outcome) -> dict[str, Any]:
    job = each.case.job
    return {
        "kind": outcome.kind if outcome.kind != "found" else "wrong phase",
        "alert": outcome.alert,
        "run": job.run,
        "rank": outcome.rank,
        "step": round(job.own, 3),
        "cv": round(job.cv, 3),
        **{name: round(value, 3) for name, value in each.case.facts.items()},
    }
