"""The rule: from two runs to pass, fail, or not decided."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, inf, log10

import numpy as np

from laggard_cli.gate.means import compare_means
from laggard_cli.gate.measured import Array, Measured
from laggard_cli.gate.repeats import compare_recordings
from laggard_cli.gate.statistics import CONFIDENCE, MIN_VALUES, Difference, compare, holm
from laggard_cli.gate.student import quantile

#: Chance that of two equal runs the step or the throughput comes out significant, and that a phase does.
LEVEL = 0.005
#: What a run passes by. Phases say where it is slower; one that cannot be decided holds up nothing.
WHOLE = ("step", "throughput")
#: What the mean of a step has beyond the usual one, which few steps make: it fails, too, and holds up nothing.
PAUSES = "pauses"
#: They and the pauses are one family of comparisons.
_WHOLE = len(WHOLE) + 1
#: A phase in less than half of the blocks has no usual value: it is judged by its mean.
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
        return tuple(each for each in self.comparisons if each.unit == "s" and each.name not in (*WHOLE, PAUSES))

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
    runs = baseline, candidate
    timed = [
        _timed("step", runs, baseline.step, candidate.step),
        _timed("throughput", runs, one, two, unit=f"{counted}/s"),
    ]
    timed.append(_pauses(runs, baseline.step, candidate.step, timed[0].difference))
    for phase in sorted(baseline.phases.keys() | candidate.phases.keys()):
        one, two = (run.phases.get(phase, 0 * run.step) for run in runs)
        timed.append(_timed(phase, runs, one, two))
    shorter = min(baseline.length, candidate.length)
    comparisons: list[Comparison] = []
    for family in (timed[:_WHOLE], timed[_WHOLE:]):
        judged = [found for found in family if not found.told and found.name not in ignored]
        chances = holm([found.difference.p for found in judged])
        adjusted = dict(zip((found.name for found in judged), chances, strict=True))
        comparisons += [_judged(found, adjusted, limit, shorter) for found in family]
    comparisons += [
        _memory(kind, baseline.memory[kind], candidate.memory[kind], limit, ignored)
        for kind in sorted(baseline.memory.keys() & candidate.memory.keys())
    ]
    return Verdict(baseline, candidate, limit, tuple(comparisons))


_Runs = tuple[Measured, Measured]


@dataclass(frozen=True)
class _Timed:
    name: str
    unit: str
    baseline: float
    candidate: float
    base: float
    difference: Difference
    told: str = ""
    """Why it is told and not judged."""


def _timed(name: str, runs: _Runs, one: Array, two: Array, unit: str = "s") -> _Timed:
    difference = compare(one, two)
    present = max(float((series > 0).mean()) * difference.block for series in (one, two))
    if present < _PRESENT:
        return _means(name, _of_recordings(runs, one, two, np.mean) or compare_means(one, two), runs, one, two)
    difference = _of_recordings(runs, one, two, np.median) or difference
    base = runs[0].step if unit == "s" else one
    return _Timed(name, unit, float(one.mean()), float(two.mean()), float(base.mean()), difference)


def _pauses(runs: _Runs, one: Array, two: Array, usual: Difference) -> _Timed:
    difference = _of_recordings(runs, one, two, _rest) or compare_means(one, two - usual.shift)
    found = _means(PAUSES, difference, runs, one, two)
    return replace(found, baseline=_rest(one), candidate=_rest(two))


def _rest(series: Array) -> float:
    return max(0.0, float(series.mean() - np.median(series)))


def _means(name: str, difference: Difference | None, runs: _Runs, one: Array, two: Array) -> _Timed:
    told = "" if difference else "too few of them for a test of means"
    nothing = Difference(shift=0, error=0, freedom=inf, p=1, superiority=0.5, block=1)
    base = float(runs[0].step.mean())
    return _Timed(name, "s", float(one.mean()), float(two.mean()), base, difference or nothing, told)


def _of_recordings(
    runs: _Runs, one: Array, two: Array, value: Callable[[Array], float | np.floating]
) -> Difference | None:
    baseline, candidate = runs
    return compare_recordings(baseline.parts(one), candidate.parts(two), lambda series: float(value(series)))


def _judged(found: _Timed, adjusted: dict[str, float], limit: float, shorter: int) -> Comparison:
    difference = found.difference
    change, upper = difference.shift / found.base, difference.upper / found.base
    p = adjusted.get(found.name)
    needed = _needed(difference, limit * found.base, len(adjusted), shorter)
    if p is None:
        outcome, reason = Outcome.TOLD, found.told or "ignored"
        change = (found.candidate - found.baseline) / found.base if found.told else change
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
        superiority=None if found.told else difference.superiority,
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
