"""``laggard report``: what it finds, why it says healthy, and what it does not judge."""

from __future__ import annotations

import dataclasses

import numpy as np

from laggard_cli.report import causes, costs
from laggard_cli.report.judgement import judged, missing
from laggard_cli.report.page import page
from laggard_cli.report.verdicts import Firing
from tests.cli.report.runs import BEGIN, problem, run


def test_peers_are_compared_as_the_rules_compare() -> None:
    """The median from eight ranks on, the lower quartile from three, of two the faster; what is missing is left out."""
    column = np.arange(1.0, 9.0)[:, None]
    assert costs.reference(column).tolist() == [4.5]
    assert costs.reference(column[:4]).tolist() == [1.75]
    assert costs.reference(column[:2]).tolist() == [1.0]
    assert np.isnan(costs.reference(np.full((2, 1), np.nan))).all()


def test_symptoms_stand_behind_their_cause() -> None:
    """What follows from what is as Alertmanager has it; a cause must be there at the time, on the same rank or host."""
    slow = problem("r", "5", "node-0")
    node = dataclasses.replace(problem("r", "", "node-0"), alert="TrainingNodeSlow")
    elsewhere = dataclasses.replace(problem("r", "", "node-1"), alert="TrainingNodeSlow")
    later = dataclasses.replace(node, firings=[Firing(node.worst, BEGIN + 4000, BEGIN + 5000)])
    assert causes.cause(slow, [slow, elsewhere, later, node]) is node
    assert causes.cause(slow, [slow, elsewhere, later]) is None
    # What makes a rank slow may make it unsteady too.
    unsteady = dataclasses.replace(slow, alert="TrainingContention")
    assert causes.cause(slow, [slow, unsteady]) is None
    assert causes.cause(unsteady, [slow, unsteady]) is None
    stalled = dataclasses.replace(node, alert="TrainingStalled", severity="critical")
    assert causes.cause(slow, [slow, stalled]) is stalled
    assert causes.cause(dataclasses.replace(slow, alert="TrainingLossSpike"), [slow, stalled]) is None
    assert causes.cause(node, [slow, node]) is None


def test_a_slow_stage_is_seen_against_the_other_stages() -> None:
    """Within its group no rank is slow; across groups all of them are."""
    history = dataclasses.replace(run(healthy=True).history, groups={str(rank): f"s{rank // 4}" for rank in range(8)})
    history.own[4:] *= 1.5
    assert np.nanmax(costs.excess(history)) < 1.01
    assert np.nanmin(costs.excess(history, across=True)[4:]) > 1.1


def test_a_healthy_run_says_why() -> None:
    """What was compared, and how far it is from a verdict."""
    report = run(healthy=True)
    assert report.judged.headline == "Healthy: no verdict above info in these 60 min."
    assert report.judged.reasons == [
        "8 of 8 ranks were compared.",
        "The slowest, rank 2, needed 1.00 times as long as its peers; a verdict needs 1.20.",
        "On average 10% of a step went into waiting for data; a verdict needs 20%.",
        "There was no time in which no rank ended a step.",
    ]


def test_healthy_is_said_of_all_ranks_or_of_none() -> None:
    """A rank that reports and was never compared is named, and one that never reported is counted."""
    history = run(healthy=True).history
    history.own[6] = np.nan
    unknown = missing(history, None, exporters=True, remarks=[])
    found = judged(history, [], [], unknown)
    assert (found.state, found.headline) == (
        "unknown",
        "No verdict above info in these 60 min, and 1 rank was never compared.",
    )
    assert "7 of 8 ranks were compared." in found.reasons
    assert any("no step counts: rank 6." in said for said in found.reasons)
    found = judged(dataclasses.replace(history, expected=10), [], [], [])
    assert found.headline.endswith("and 3 ranks were never compared.")


def test_a_bubble_is_not_reported_as_transfer() -> None:
    """What all ranks wait is transfer and has a limit; in a pipeline it is bubble too and has none."""
    history = run(healthy=True).history
    history.limits["communication_bound_share"] = 0.16
    history.facts["run:training_communication_floor_share:ratio"] = np.full(len(history.times), 0.1)
    said = judged(history, [], [], []).reasons
    assert "On average 10% of a step went into transfer; a verdict needs 16%." in said
    history.facts["run:training_stages:count"] = np.full(len(history.times), 4.0)
    said = judged(history, [], [], []).reasons
    assert "On average 10% of a step went into transfer and bubble." in said


def test_without_anything_to_compare_nothing_is_judged() -> None:
    """A run whose ranks report no step, or of which nothing reports, is not healthy; its page says what is missing."""
    history = run().history
    nothing_own = {name: np.full_like(history.own, np.nan) for name in ("own", "wait")}
    silent = dataclasses.replace(history, **nothing_own, phases={})
    empty = np.zeros((0, len(history.times)))
    absent = dataclasses.replace(silent, own=empty, wait=empty, reports=empty, ranks=[], hosts={}, information=[])
    for each, first in ((silent, "Ranks report and no step counts yet"), (absent, "No rank's own metrics are there")):
        unknown = missing(each, None, exporters=False, remarks=["The rule is gone."])
        found = judged(each, [], [], unknown)
        assert found.headline == "Not judged: in these 60 min the ranks could not be compared."
        assert found.reasons[0].startswith(first)
        assert found.reasons[-1] == "The rule is gone."
        text = page(
            dataclasses.replace(run(), history=each, told=(), judged=found, losses=None, missing=tuple(unknown))
        )
        assert "No node exporter shows the state files of this run" in text
