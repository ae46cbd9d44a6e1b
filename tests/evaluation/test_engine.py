"""The rule engine over single simulated runs, where rules went wrong by the moments at which groups are evaluated."""

from __future__ import annotations

import pytest

from evaluation import engine
from evaluation.draw import Draw
from evaluation.scenarios import SCENARIOS


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
