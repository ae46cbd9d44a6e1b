"""Under the load of many ranks a part of the way is killed: nothing that was accepted is lost, and verdicts stand."""

from __future__ import annotations

import pytest

from lab.scale.measure import Result, measure
from lab.scale.site import Kill, Plan
from lab.scale.thanos import THANOS
from tests.collector.support import collector, missing, newest_prometheus

#: Beside other tests samples can be late by more than the shortest window, and then a verdict lapses and comes back.
_PLAN = Plan("prometheus", seconds=60.0, fault=15.0, step=0.2, path="otlp", profile="fast", patience=40.0)

#: They are the longest tests, and groups are begun first: at the end they would hold up the rest.
pytestmark = pytest.mark.xdist_group("kills")


def _nothing_is_lost(result: Result) -> None:
    """Hold what was accepted against what can be asked for, sample by sample, and the verdicts."""
    pushed = result.pushed
    assert (pushed["samples_lost"], pushed["times_lost"]) == (0, 0)
    assert (pushed["refused_by_agents"], pushed["refused"]) == (0, 0)
    assert (result.not_said, result.not_standing) == ([], [])


@pytest.mark.timeout(400)
def test_agent_and_gateway() -> None:
    """Of 80 ranks, with the gateway killed and then one of two agents, all that agents accepted arrives."""
    collector()
    kills = Kill("gateway", at=34.0, away=2.0), Kill("agent-0", at=42.0, away=2.0)
    plan = Plan(**{**vars(_PLAN), "program": str(newest_prometheus()), "agents": 2, "kills": kills})
    ranks = 80
    result = measure(ranks, plan)
    _nothing_is_lost(result)
    assert (result.failed_evaluations, result.not_answered) == (0, 0)
    # A point is accepted by an agent: of these ranks at least so many, and while the gateway was away they waited.
    assert result.pushed["points"] > ranks * 56 * 10
    assert result.pushed["waiting"] > ranks * 56
    assert result.pushed["written"] > ranks * 56
    # Who pushed to the dead agent was told nothing, and did not wait for ever.
    assert 0 < result.pushed["given_up"] <= ranks


@pytest.mark.timeout(400)
def test_members_of_thanos() -> None:
    """Of 32 ranks, with each member of receive killed in turn, all arrives, and the ruler goes on."""
    collector()
    if not THANOS.exists():
        missing("no Thanos: run scripts/tools/build_thanos.sh, which needs Go")
    kills = Kill("receive-1", at=32.0, away=2.0), Kill("receive-0", at=44.0, away=2.0)
    plan = Plan(**{**vars(_PLAN), "seconds": 75.0, "engine": "thanos", "kills": kills})
    ranks = 32
    result = measure(ranks, plan)
    _nothing_is_lost(result)
    assert result.pushed["points"] > ranks * 56 * 10
    # While the member that it writes to was away, the gateway handed points back, and agents sent them again.
    assert result.pushed["not_written"] > 0
