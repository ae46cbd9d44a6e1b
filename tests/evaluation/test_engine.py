"""The rule engine over single simulated runs, where rules went wrong by the moments at which groups are evaluated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluation import engine
from evaluation.draw import Draw
from evaluation.scenarios import SCENARIOS
from evaluation.scenarios.consequences import with_consequences
from evaluation.score import record


@pytest.mark.usefixtures("built")
def test_a_moment_without_ranks_leaves_no_limit_behind() -> None:
    """Between two incarnations nobody lives; what is left of the stall limit then must not judge the start after it."""
    name, ranks, seed = "restart", 4, 33
    case = SCENARIOS[name].make(Draw(seed, name, ranks))
    limits = engine.run([case.job], seed, ask="run:training_stall_limit_seconds:max")
    assert {alert.alert for alert in limits.fired} == {"LaggardWatchdog"}
    seen = [value for _, _, value in limits.answers]
    assert len(seen) > 10
    assert set(seen) <= {15, 600}


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "scenario",
    ["healthy", "slow_forward", "slow_host", "slow_stage", "input_bound", "copy_bound", "hang_in_backward", "killed"],
)
def test_verdicts_depend_on_ratios_not_on_how_long_a_step_is(scenario: str) -> None:
    """The same scenario with steps of 50 ms and of 20 s: the same verdicts on the same ranks, and none is wrong."""
    said = []
    for step in (0.05, 20.0):
        made = replace(SCENARIOS[scenario].make(Draw(3, scenario, 8, step=step)), scenario=scenario)
        assert made.job.own == step
        about = {expected.alert for expected in made.expected}
        case = with_consequences(made)
        outcomes = record(case, engine.run([case.job], seed=3).fired)["outcomes"]
        assert [each for each in outcomes if each["kind"] != "found"] == []
        said.append({(each["alert"], each["rank"], each["phase_right"]) for each in outcomes if each["alert"] in about})
        assert {alert for alert, _, _ in said[-1]} == about
    assert said[0] == said[1]
