"""The rule engine over single simulated runs, where rules went wrong by the moments at which groups are evaluated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.evaluation import engine
from lab.evaluation.draw import Draw
from lab.evaluation.scenarios import SCENARIOS
from lab.evaluation.scenarios.consequences import with_consequences
from lab.evaluation.score import record
from tests.support.cases import usual

#: Each has a rule of its own for what is long; `usual()` has those of own time, of stalls and of ends.
SCALED = (
    "healthy", "slow_forward", "slow_host", "slow_stage", "input_bound", "copy_bound", "hang_in_backward", "killed"
)  # fmt: skip


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
@pytest.mark.parametrize("scenario", usual(SCALED, "healthy", "slow_forward", "hang_in_backward", "killed"))
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


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("scenario", "ranks", "seed", "number", "moments"),
    [
        pytest.param("one_hiccup", 8, 1021, 0, 108, id="a mean over three minutes holds a hiccup"),
        pytest.param("uneven_batches", 4, 61, 8, 101, id="another rank is slow in each interval"),
        pytest.param("copy_bound", 4, 63, 10, 104, id="all ranks of few steps become slower at once"),
        pytest.param("hardly_slow_host", 4, 63, 3, 100, id="a rank wanders above the limit for two minutes"),
        pytest.param("serialized", 4, 62, 8, 100, id="few samples of a quantile are all of a change"),
    ],
)
def test_nobody_is_named_for_a_moment(scenario: str, ranks: int, seed: int, number: int, moments: int) -> None:
    """Where a rank, or a run, seems to have a fault for some minutes alone, nothing is said but what is true."""
    made = replace(SCENARIOS[scenario].make(Draw(seed, scenario, ranks, number)), scenario=scenario)
    case = with_consequences(made)
    outcomes = record(case, engine.run([case.job], moments).fired)["outcomes"]
    assert [each for each in outcomes if each["kind"] != "found"] == []
    assert {each["alert"] for each in outcomes} >= {expected.alert for expected in case.expected}
