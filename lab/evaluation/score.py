"""Counts over many cases: precision, recall, wrong ranks, time to detect, and what was taken for what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

from lab.evaluation.model.job import Case
from lab.evaluation.scenarios import ALL
from laggard_cli.replay.truth import Expected, Fired, Outcome, Truth, judge

Record = dict[str, Any]


def record(case: Case, fired: Iterable[Fired]) -> Record:
    """Compare what fired with what is known of a case; return both as plain data."""
    job = case.job
    expected = tuple(
        Expected(each.alert, frozenset(map(str, each.culprits)), each.detail, each.begin, each.end)
        for each in case.expected
    )
    own = [each for each in fired if each.run == job.run]
    # An alert for information is as right or wrong as any other.
    judged = [replace(each, severity="judged") for each in own if each.alert in ALL]
    told = {each.alert for each in own if each.severity == "info"}
    outcomes = judge(Truth(job.run, expected, frozenset(case.allowed)), judged)
    return {
        "run": job.run,
        "scenario": case.scenario,
        "ranks": job.ranks,
        "step": round(job.own, 4),
        "cv": round(job.cv, 3),
        "facts": {name: round(value, 3) for name, value in case.facts.items()},
        "expected": sorted({each.alert for each in case.expected}),
        "near": sorted(case.near),
        "others": sorted({each.alert for each in own if each.alert not in ALL}),
        "outcomes": [{**_plain(outcome), "info": outcome.alert in told} for outcome in outcomes],
    }


def _plain(outcome: Outcome) -> Record:
    delay = None if outcome.delay is None else round(outcome.delay, 1)
    return {
        "kind": outcome.kind,
        "alert": outcome.alert,
        "rank": outcome.rank,
        "delay": delay,
        "phase_right": outcome.phase_right,
    }


def summary(records: list[Record]) -> dict[str, Any]:
    """Return everything that the report shows, as plain data."""
    alerts = sorted({outcome["alert"] for each in records for outcome in each["outcomes"]})
    healthy = [each for each in records if not each["expected"]]
    slow = [each for each in records if each["scenario"].startswith("slow") and "effect" in each["facts"]]
    return {
        "runs": len(records),
        "scenarios": len({each["scenario"] for each in records}),
        "pooled": _rates(_outcomes(records)),
        "alerts": {alert: _alert(alert, records) for alert in alerts},
        "healthy": {
            "runs": len(healthy),
            "with_alerts": sum(
                any(outcome["kind"] != "found" and not outcome["info"] for outcome in each["outcomes"])
                for each in healthy
            ),
        },
        "sizes": _by(records, _SIZES, lambda each: each["ranks"], "TrainingStraggler"),
        "steps": _by(records, _STEPS, lambda each: each["step"], "TrainingStraggler"),
        "effects": _by(slow, _EFFECTS, lambda each: each["facts"]["effect"], "TrainingStraggler"),
        "targets": _targets(records),
        "confusion": _confusion(records),
        "others": _others(records),
        "wrong": [
            {**{name: each[name] for name in ("run", "step", "cv", "facts")}, **outcome}
            for each in records
            for outcome in each["outcomes"]
            if outcome["kind"] != "found" or not outcome["phase_right"]
        ],
    }


_SIZES = ((2, "2"), (4, "4"), (8, "8"), (64, "64"), (512, "512"), (inf, "10,000"))
_STEPS = ((0.1, "to 0.1 s"), (1, "to 1 s"), (3, "to 3 s"), (10, "to 10 s"), (30, "to 30 s"), (inf, "to 60 s"))
_EFFECTS = ((1.2, "1.15 to 1.2"), (1.3, "to 1.3"), (1.5, "to 1.5"), (2.0, "to 2"), (inf, "to 3"))


def _outcomes(records: Iterable[Record], alert: str = "") -> list[Record]:
    return [outcome for each in records for outcome in each["outcomes"] if alert in ("", outcome["alert"])]


def _rates(outcomes: list[Record]) -> dict[str, Any]:
    kinds = Counter(outcome["kind"] for outcome in outcomes)
    found, wrong = kinds["found"], kinds["false"] + kinds["wrong rank"]
    delays = [outcome["delay"] for outcome in outcomes if outcome["delay"] is not None]
    return {
        "found": found,
        "missed": kinds["missed"],
        "false": kinds["false"],
        "wrong_rank": kinds["wrong rank"],
        "wrong_phase": sum(not outcome["phase_right"] for outcome in outcomes),
        "precision": found / (found + wrong) if found + wrong else None,
        "recall": found / (found + kinds["missed"]) if found + kinds["missed"] else None,
        "median_delay": median(delays) if delays else None,
    }


def _alert(alert: str, records: list[Record]) -> dict[str, Any]:
    return {
        **_rates(_outcomes(records, alert)),
        "positive_runs": sum(alert in each["expected"] for each in records),
        "near_misses": sum(alert in each["near"] for each in records),
    }


def _by(
    records: list[Record], classes: tuple[tuple[float, str], ...], key: Callable[[Record], float], alert: str
) -> dict[str, Any]:
    """Return the rates of all alerts, or of one, in classes of a number."""
    groups: dict[str, list[Record]] = {name: [] for _, name in classes}
    for each in records:
        groups[next(name for limit, name in classes if key(each) <= limit)].append(each)
    return {name: _rates(_outcomes(found, alert)) for name, found in groups.items() if found}


def _targets(records: list[Record]) -> dict[str, dict[str, float | None]]:
    """Return the median time to detect over what it should be at most, for stragglers by effect and for stalls."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for each in records:
        effect, step = each["facts"].get("effect"), each["step"]
        for outcome in each["outcomes"]:
            if outcome["kind"] != "found":
                continue
            if outcome["alert"] == "TrainingStraggler" and effect:
                long = effect >= 1.3  # noqa: PLR2004 - the effect for which a quick verdict is promised
                steps = step * effect
                limit = max(90.0, 40 * steps) if long else max(300.0, 100 * steps)
                ratios["straggler of 1.3 or more" if long else "straggler below 1.3"].append(outcome["delay"] / limit)
            elif (
                outcome["alert"] == "TrainingStalled" and "limit" in each["facts"] and each["scenario"] != "hang_unseen"
            ):
                ratios["stall"].append(outcome["delay"] / (each["facts"]["limit"] + 30))
    return {name: {"median": median(found), "runs": len(found)} for name, found in sorted(ratios.items())}


def _confusion(records: list[Record]) -> dict[str, dict[str, Any]]:
    """Return, for each alert that must fire in a run, in how many runs which others fired falsely beside it.

    A run with two faults counts for both; one without any under an empty name.
    """
    runs: Counter[str] = Counter()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for each in records:
        wrong = {outcome["alert"] for outcome in each["outcomes"] if outcome["kind"] in {"false", "wrong rank"}}
        for truth in each["expected"] or [""]:
            runs[truth] += 1
            table[truth].update(wrong)
    return {truth: {"runs": runs[truth], "false": dict(table[truth].most_common())} for truth in sorted(runs)}


def _others(records: list[Record]) -> dict[str, dict[str, int]]:
    """Return for each alert that no scenario judges in how many runs of each scenario it fired."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for each in records:
        for alert in each["others"]:
            table[alert][each["scenario"]] += 1
    return {alert: dict(counts.most_common()) for alert, counts in sorted(table.items())}
