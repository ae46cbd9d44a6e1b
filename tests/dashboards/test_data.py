"""Every query of every panel, asked of a real Prometheus that holds simulated runs and what the rules made of them."""

from __future__ import annotations

import re

import pytest

from dashboards.panels import MOST_SERIES
from dashboards.queries import CHOSEN, PANELS, NamedPanel
from tests.dashboards.world import LONG, RANKS, World
from tests.support.cases import EVERY_CASE

#: Plots of what must not happen, which no fault of the simulation shows.
SILENT = {
    # Carbon needs an intensity that the reader sets.
    "laggard-cost: Carbon of an hour",
    "laggard-cost: Carbon of runs",
}
#: What only the long runs show, before a release.
UNSHOWN = set[str]() if EVERY_CASE else set(LONG.values())


#: The runs are dear: one process for all tests of them.
pytestmark = pytest.mark.xdist_group("world")


@pytest.mark.parametrize("panel", PANELS, ids=str)
def test_panel_has_data(simulated: World, panel: NamedPanel) -> None:
    """Each query works for every run, returns series for some run, and never more than a person can tell apart."""
    for target in panel.targets:
        found = [len(simulated.answers(target, run, step=60)) for run in simulated.ends]
        assert max(found) <= MOST_SERIES, target["expr"]
        assert str(panel) in UNSHOWN or (max(found) > 0) == (str(panel) not in SILENT), target["expr"]


@pytest.mark.parametrize("name", CHOSEN)
def test_what_can_be_chosen(simulated: World, name: str) -> None:
    """Ranks and GPUs that stand out are found in some run, each once, and never more than a person can tell apart."""
    found = [simulated.chosen(name, run).strip("()").split("|") for run in simulated.ends]
    most = max(found, key=len)
    assert RANKS <= len(most) == len(set(most)) <= MOST_SERIES


def test_a_verdict_on_a_stage_names_it(simulated: World) -> None:
    """The timeline says which peer group is slow, and the list of verdicts has it in a column."""
    (timeline,) = (each for each in PANELS if str(each) == "laggard-run: Verdicts over time")
    (found,) = (
        each["metric"]
        for each in simulated.answers(timeline.targets[0], "slow_stage-8-1")
        if each["metric"]["alertname"] == "TrainingStageSlow"
    )
    assert re.fullmatch(r"group stage-\d", found["training_peer_group"])
    assert "{{training_peer_group}}" in timeline.targets[0]["legendFormat"]
    (verdict,) = (each for each in PANELS if str(each) == "laggard-fleet: Verdicts that fire now")
    assert verdict.json["transformations"][0]["options"]["renameByName"]["training_peer_group"] == "Stage or group"


def test_a_hang_shows_its_culprit(simulated: World) -> None:
    """Of a run that hangs the first rank shown is the one outside of the collective, and who waits has a number."""
    run = "hang_in_data-8-1"
    culprit = simulated.chosen("suspects", run).strip("()").split("|")[0]
    of = {panel.json["title"]: panel.targets[0] for panel in PANELS if panel.uid == "laggard-hang"}
    (behind,) = simulated.answers(of["Ranks that the others wait for"], run)
    assert behind["metric"]["training_rank"] == culprit
    pending = simulated.answers(of["First collective that is not done"], run)
    assert {each["metric"]["training_rank"] for each in pending} == set(map(str, range(RANKS))) - {culprit}
    assert simulated.answers(of["First collective that is not done"], "healthy-8-1") == []


def test_disks_are_those_of_the_run(simulated: World) -> None:
    """A plot of hosts has no host of another run."""
    for uid, title in (("laggard-data", "Latency of disks"), ("laggard-communication", "Sent by host")):
        (panel,) = (each for each in PANELS if (each.uid, each.json["title"]) == (uid, title))
        hosts = {each["metric"]["host_name"] for each in simulated.answers(panel.targets[0], "input_bound-8-1")}
        assert hosts
        assert all(host.startswith("input_bound-8-1-") for host in hosts)


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
