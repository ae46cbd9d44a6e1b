"""The rule: from two runs to pass, fail, or not decided."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from math import ceil, log10

import numpy as np

from laggard_cli.gate.measured import Array, Measured
from laggard_cli.gate.statistics import CONFIDENCE, MIN_VALUES, Difference, compare, holm
from laggard_cli.gate.student import quantile

#: Chance that of two equal runs the step or the throughput comes out significant, and that a phase does.
LEVEL = 0.005
#: What a run passes by. Phases say where it is slower; one that can not be decided holds up nothing.
WHOLE = ("step", "throughput")
#: A phase in less than half of the blocks can not be judged by blocks.
_PRESENT = 0.5
#: What the throughput is counted in; the first that both runs have.
_COUNTED = ("tokens", "samples", "steps")


class Outcome(Enum):
    """What became of one comparison, or of all."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    UNDECIDED = "not decided"
    TOLD = "not judged"


@dataclass(frozen=True)
class Comparison:
    """One quantity of both runs. Changes are shares of the baseline: 0.05 is 5 % more, or for throughput 5 % less."""

    name: str
    unit: str
    """``s`` for durations, ``By`` for memory, ``/s`` for throughput."""
    baseline: float
    candidate: float
    change: float
    """By how much the candidate is worse; of a phase, as a share of the baseline's step."""
    upper: float | None = None
    """So much worse at most, with 95 % confidence; none for what is no test."""
    p: float | None = None
    """Adjusted for all that is judged (Holm)."""
    superiority: float | None = None
    block: int | None = None
    """Units in a block."""
    needed: int | None = None
    """Units of each run with which it is found worse by the limit in 95 of 100 cases."""
    outcome: Outcome = Outcome.TOLD
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """The candidate against the baseline."""

    baseline: Measured
    candidate: Measured
    limit: float
    comparisons: tuple[Comparison, ...]

    @property
    def outcome(self) -> Outcome:
        """Fail where one comparison fails, else not decided where step or throughput are not."""
        if any(comparison.outcome is Outcome.FAIL for comparison in self.comparisons):
            return Outcome.FAIL
        undecided = any(each.outcome is Outcome.UNDECIDED for each in self.comparisons if each.name in WHOLE)
        return Outcome.UNDECIDED if undecided else Outcome.PASS

    @property
    def phases(self) -> tuple[Comparison, ...]:
        """Comparisons of phases."""
        return tuple(each for each in self.comparisons if each.unit == "s" and each.name not in WHOLE)

    @property
    def needed(self) -> int:
        """Units of each run with which a slow-down of the limit is found in 95 of 100 cases, at this noise."""
        return max(comparison.needed or 0 for comparison in self.comparisons if comparison.name in WHOLE)


def judge(baseline: Measured, candidate: Measured, limit: float, ignored: Collection[str] = ()) -> Verdict:
    """Compare a candidate with a baseline of the same unit and number of ranks.

    Args:
        baseline: what was.
        candidate: what is.
        limit: the slow-down to be found, as a share; memory fails above it.
        ignored: names of what is told and not judged.
    """
    counted = next(name for name in _COUNTED if name in baseline.throughput and name in candidate.throughput)
    one, two = baseline.throughput[counted], candidate.throughput[counted]
    timed = [
        _timed("step", baseline.step, candidate.step, baseline.step.mean()),
        _timed("throughput", one, two, one.mean(), unit=f"{counted}/s"),
    ]
    for phase in sorted(baseline.phases.keys() | candidate.phases.keys()):
        one, two = (run.phases.get(phase, 0 * run.step) for run in (baseline, candidate))
        timed.append(_timed(phase, one, two, baseline.step.mean()))
    shorter = min(baseline.length, candidate.length)
    comparisons: list[Comparison] = []
    for family in (timed[: len(WHOLE)], timed[len(WHOLE) :]):
        judged = [found for found in family if not found.rare and found.name not in ignored]
        chances = holm([found.difference.p for found in judged])
        adjusted = dict(zip((found.name for found in judged), chances, strict=True))
        comparisons += [_judged(found, adjusted, limit, shorter, ignored) for found in family]
    comparisons += [
        _memory(kind, baseline.memory[kind], candidate.memory[kind], limit, ignored)
        for kind in sorted(baseline.memory.keys() & candidate.memory.keys())
    ]
    return Verdict(baseline, candidate, limit, tuple(comparisons))


@dataclass(frozen=True)
class _Timed:
    name: str
    unit: str
    baseline: float
    candidate: float
    base: float
    difference: Difference
    rare: bool


def _timed(name: str, one: Array, two: Array, base: np.floating, unit: str = "s") -> _Timed:
    difference = compare(one, two)
    present = max(float((series > 0).mean()) * difference.block for series in (one, two))
    return _Timed(name, unit, float(one.mean()), float(two.mean()), float(base), difference, present < _PRESENT)


def _judged(
    found: _Timed, adjusted: dict[str, float], limit: float, shorter: int, ignored: Collection[str]
) -> Comparison:
    difference = found.difference
    change, upper = difference.shift / found.base, difference.upper / found.base
    p = adjusted.get(found.name)
    needed = _needed(difference, limit * found.base, len(adjusted), shorter)
    if p is None:
        outcome, reason = Outcome.TOLD, "ignored" if found.name in ignored else "too rare to be judged"
        # The median of blocks says nothing of what most of them lack.
        change = (found.candidate - found.baseline) / found.base if found.rare else change
    elif shorter < MIN_VALUES:
        outcome, reason = Outcome.UNDECIDED, f"{shorter} values, {MIN_VALUES} are needed at least"
    elif p < LEVEL and change >= limit / 2:
        outcome, reason = Outcome.FAIL, f"significantly worse, by {percent(change)}; fails from {percent(limit / 2)}"
    elif upper < limit:
        outcome, reason = Outcome.PASS, f"worse by {percent(upper)} at most; the limit is {percent(limit)}"
    else:
        outcome, reason = Outcome.UNDECIDED, f"worse by up to {percent(upper)}; the limit is {percent(limit)}"
    inverse = found.unit != "s"
    return Comparison(
        name=found.name,
        unit=found.unit,
        baseline=1 / found.baseline if inverse else found.baseline,
        candidate=1 / found.candidate if inverse else found.candidate,
        change=change,
        upper=None if p is None else upper,
        p=p,
        superiority=None if found.rare else difference.superiority,
        block=difference.block,
        needed=None if p is None else needed,
        outcome=outcome,
        reason=reason,
    )


def _needed(difference: Difference, limit: float, comparisons: int, length: int) -> int:
    """Return at which length of each run a slow-down of the limit is significant in 95 of 100 cases, in two digits."""
    level = 1 - LEVEL / max(1, comparisons)
    certain = quantile(level, difference.freedom) + quantile(CONFIDENCE, difference.freedom)
    exact = max(length * (difference.error * certain / limit) ** 2, MIN_VALUES)
    digit = 10 ** max(0, int(log10(exact)) - 1)
    return ceil(exact / digit) * digit


def _memory(kind: str, one: float, two: float, limit: float, ignored: Collection[str]) -> Comparison:
    change = two / one - 1 if one else float(two > 0)
    if kind in ignored:
        outcome, reason = Outcome.TOLD, "ignored"
    elif change > limit:
        outcome, reason = Outcome.FAIL, f"{percent(change)} more; the limit is {percent(limit)}"
    else:
        outcome, reason = Outcome.PASS, f"{percent(change)} more; the limit is {percent(limit)}"
    return Comparison(kind, "By", one, two, change, outcome=outcome, reason=reason)


def percent(share: float) -> str:
    """Return a share as a text."""
    return f"{100 * share:.3g} %" if abs(share) >= 1 else f"{100 * share:.1f} %"
