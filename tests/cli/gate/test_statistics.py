"""``laggard gate``: what its statistics find, and what they leave undecided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.evaluation.gate import cell, simulate
from laggard_cli.gate.measured import Measured, joined
from laggard_cli.gate.statistics import compare, correlation_time, holm
from laggard_cli.gate.student import quantile, tail
from laggard_cli.gate.verdict import Outcome, judge


def test_the_test_counts_independent_steps() -> None:
    """Correlated values count as fewer, and a shift is found where it is and as large as it is."""
    chance = np.random.default_rng(1)
    white = chance.standard_normal(4000)
    wave = white.copy()
    for step in range(1, len(wave)):
        wave[step] += 0.8 * wave[step - 1]
    # (1 + 0.8) / (1 - 0.8) = 9
    assert correlation_time(wave) == pytest.approx(9, rel=0.25)
    assert correlation_time(white) == pytest.approx(1, abs=0.2)
    assert correlation_time(np.ones(50)) == 1
    # A pause once in a while is no resemblance of its neighbours.
    pauses = np.zeros(600)
    pauses[::60] = 1
    assert correlation_time(pauses) < 1.5
    same = compare(wave, wave)
    assert (same.shift, same.superiority) == (0, 0.5)
    assert same.p == pytest.approx(0.5, abs=0.01)
    assert same.block == pytest.approx(33, rel=0.3)
    shifted = compare(white, white + 0.5)
    assert shifted.shift == pytest.approx(0.5, abs=0.05)
    assert shifted.shift < shifted.upper < 0.7
    assert shifted.p < 1e-6
    # Ranks cannot tell much of a series that drifts all the time; its spread still bounds what may be drift.
    drift = 100 + np.linspace(0, 1, 60)
    found = compare(drift, drift + 5)
    assert (found.shift, found.freedom) == (5, 4)
    assert 5 < found.upper < 6
    assert 1e-6 < found.p < 2.5e-3
    assert compare(drift, drift).p == pytest.approx(0.5)
    # From tables of Student's distribution.
    assert [quantile(chance, freedom) for chance, freedom in ((0.95, 4), (0.995, 10))] == pytest.approx(
        [2.132, 3.169], abs=1e-3
    )
    assert tail(2.132, 4) == pytest.approx(0.05, abs=1e-4)
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])


def test_equal_runs_pass_and_slower_ones_are_found() -> None:
    """A small part of the evaluation: with correlated noise and checkpoints no equal run fails, and 5 % is found."""
    for steps, noise, decay in ((256, 0.05, 0.0), (1024, 0.05, 0.6)):
        found = cell(20, steps, noise, decay, seed=3)
        assert found.equal == {"pass": 20}
        assert found.slow == {"fail": 20}


def test_what_few_steps_take_is_found() -> None:
    """Pauses in one step of fifty, and saves that take twice as long, fail by name; the usual step passes."""
    chance = np.random.default_rng(4)
    without, same = (simulate(chance, 2048, 0.05, 0.0) for _ in range(2))
    paused = simulate(chance, 2048, 0.05, 0.0, pauses=(0.02, 3.0))
    longer = replace(same, phases={**same.phases, "checkpoint": 2 * same.phases["checkpoint"]})
    failed = [
        [each.name for each in judge(without, run, 0.05).comparisons if each.outcome is Outcome.FAIL]
        for run in (same, paused, longer)
    ]
    assert failed == [[], ["pauses"], ["checkpoint"]]


def test_several_recordings_know_the_noise_of_the_machine() -> None:
    """Where whole runs differ, one of each fails for nothing, several do not; where they hardly do, 5 % is found."""

    def recorded(chance: np.random.Generator, number: int, apart: float, slow: float = 1.0) -> list[Measured]:
        runs = [simulate(chance, 40, 0.02, 0.0) for _ in range(number)]
        factors = slow * np.exp(apart * chance.standard_normal(number))
        return [
            replace(
                run,
                step=run.step * factor,
                phases={name: series * factor for name, series in run.phases.items()},
                throughput={"steps": run.throughput["steps"] * factor},
            )
            for run, factor in zip(runs, factors, strict=True)
        ]

    single, several, found = [], [], []
    for seed in range(20):
        chance = np.random.default_rng(seed)
        one, two = recorded(chance, 3, 0.1), recorded(chance, 3, 0.1)
        single.append(judge(one[0], two[0], 0.05).outcome)
        several.append(judge(joined("a", one), joined("b", two), 0.05).outcome)
        quiet = joined("a", recorded(chance, 5, 0.005)), joined("b", recorded(chance, 3, 0.005, slow=1.05))
        found.append(judge(*quiet, 0.05).outcome)
    assert single.count(Outcome.FAIL) > 5
    assert several.count(Outcome.FAIL) <= 1
    assert found.count(Outcome.FAIL) >= 19


def test_a_shift_within_half_the_limit_passes_however_sure_it_is() -> None:
    """Two per cent are significant with little noise, and no regression; with a limit of 3 % they are one."""
    one, two = (simulate(np.random.default_rng(seed), 1000, 0.01, 0.0) for seed in (1, 2))
    two = replace(two, step=two.step * (1.02 * float(np.median(one.step) / np.median(two.step))))
    step = judge(one, two, 0.05).comparisons[0]
    assert step.change == pytest.approx(0.02, abs=0.005)
    assert step.p is not None
    assert step.p < 1e-6
    assert step.outcome is Outcome.PASS
    assert judge(one, two, 0.03).comparisons[0].outcome is Outcome.FAIL
