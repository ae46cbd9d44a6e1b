"""Every query of every panel, asked of a real Prometheus that holds simulated runs and what the rules made of them."""

from __future__ import annotations

import pytest

from dashboards.panels import MOST_SERIES
from tests.dashboards.queries import PANELS, NamedPanel
from tests.dashboards.world import RANKS, World

#: Plots of what must not happen, which no fault of the simulation shows.
SILENT = {
    # Carbon needs an intensity that the reader sets.
    "laggard-cost: Carbon",
    "laggard-cost: Carbon of runs",
}


#: The runs are dear: one process for all tests of them.
pytestmark = pytest.mark.xdist_group("world")


@pytest.mark.parametrize("panel", PANELS, ids=str)
def test_panel_has_data(simulated: World, panel: NamedPanel) -> None:
    """Each query works for every run, returns series for some run, and never more than a person can tell apart."""
    for target in panel.targets:
        found = [len(simulated.answers(target, run)) for run in simulated.ends]
        assert max(found) <= MOST_SERIES, target["expr"]
        assert (max(found) > 0) == (str(panel) not in SILENT), target["expr"]


def test_the_culprit_stands_first(simulated: World) -> None:
    """The listing of own times shows the slow rank of a run above all others, with its host."""
    (panel,) = (each for each in PANELS if str(each) == "laggard-ranks: Own time now")
    (target,) = panel.targets
    times = simulated.answers(target, "slow_backward-8-1")
    (verdict,) = (each for each in PANELS if str(each) == "laggard-fleet: Verdicts that fire now")
    named = {
        each["metric"]["training_rank"]
        for each in simulated.answers(verdict.targets[0], "slow_backward-8-1")
        if each["metric"]["alertname"] == "TrainingStraggler" and each["metric"]["training_run"] == "slow_backward-8-1"
    }
    first = max(times, key=lambda each: float(each["value"][1]))
    assert {first["metric"]["training_rank"]} == named
    assert first["metric"]["host_name"]
    assert len(times) == RANKS
