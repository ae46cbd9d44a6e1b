"""``laggard report``: what a problem costs."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from laggard_cli.pack import alert
from laggard_cli.prometheus import Range, Sample
from laggard_cli.report import costs
from laggard_cli.report.history import Counted
from laggard_cli.report.sentences import wrong
from laggard_cli.report.span import Span
from tests.cli.report.runs import BEGIN, Server, problem, run


def test_a_slow_rank_costs_its_excess_on_all_ranks() -> None:
    """The mean of what its alert asks while it fired, 0.5 s of 1.5 s, for 25 minutes of 8 ranks."""
    (told,) = run().told
    assert told.cost is not None
    assert told.cost.share == pytest.approx(0.5 / 1.5)
    assert told.cost.rank_hours == pytest.approx(0.5 / 1.5 * 8 * 1500 / 3600)
    assert told.says == (
        "Rank 5 of run llama-7b-17 on llama-7b-17-node-0 needs 1.62 times as long as its peers in backward "
        "(since 22:48:20 UTC, costs 33% of each step)"
    )
    assert told.cost.arithmetic == "33% of each step; \u00d7 8 ranks \u00d7 25 min = 1.11 rank-hours"


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        (
            "TrainingInputWorkersBusy",
            'run:training_data_share:ratio{cluster="",training_run="r"}',
            "33% of each step; ",
        ),
        ("TrainingInputBound", "its query", "33% of each step; "),
        ("TrainingStalled", None, "no step ended for 25 min while this fired: 8 ranks"),
        ("TrainingLossSpike", None, None),
    ],
)
def test_an_alert_says_what_it_costs(name: str, asked: str | None, said: str | None) -> None:
    """A recorded share of each step, all of the time, or nothing that could be told; of a hostile template nothing."""
    server, history = Server(), run(healthy=True).history
    firing = problem("r", "5", "node-0")
    told = dataclasses.replace(firing, alert=name, query="its query", cost=alert(name)["annotations"].get("cost", ""))
    found = costs.cost(cast("Counted", server), history, told)
    assert server.asked == ([asked] if asked else [])
    assert (said is None) is (found is None)
    assert found is None or (said or "") in found.arithmetic
    assert costs.cost(cast("Counted", server), history, dataclasses.replace(told, cost="{{ nobody knows }}")) is None


def test_a_problem_of_several_ranks_says_it_of_each() -> None:
    """The worst with its numbers, the others after it; without the rule's text the title says it of all."""
    one, two = problem("r", "3", "node-0"), problem("r", "5", "node-0")
    both = dataclasses.replace(one, firings=[*one.firings, *two.firings])
    assert wrong(both).endswith("in backward; the same of rank 5")
    # Its host became known, so that it fires under another label.
    unplaced = problem("r", "3", "")
    again = dataclasses.replace(one, firings=[*one.firings, *unplaced.firings])
    assert wrong(again).endswith("in backward")
    assert wrong(dataclasses.replace(both, summary="")) == (
        "Ranks 3, 5 on node-0, phase backward: one rank makes the others wait in every step"
    )


def test_losses_without_a_number_are_none() -> None:
    """What the rules could not divide is left out; parts of whole hours are weighed by their length."""

    class Server:
        """Answers with a goodput of 0.5 over two hours, the first one short."""

        def say(self, what: str) -> None:
            pass

        def at(self, expression: str, moment: float) -> list[Sample]:
            return [Sample({}, BEGIN + 5400)] if "timestamp" in expression else []

        def over(self, expression: str, span: Span, step: float | None = None) -> list[Range]:
            if "goodput" in expression:
                return [Range({}, {BEGIN + 1800: 0.2, BEGIN + 5400: 0.8})]
            return [Range({"training_reason": "waiting"}, {BEGIN + 1800: 0.8, BEGIN + 5400: float("nan")})]

    history = dataclasses.replace(run().history, span=Span(BEGIN, BEGIN + 5400, 60, 60))
    found = costs.losses(cast("Counted", Server()), history)
    assert found is not None
    assert (found.rank_hours, found.price) == (8 * 1.5, None)
    assert found.goodput == pytest.approx((0.2 + 2 * 0.8) / 3)
    assert found.lost == {"waiting": pytest.approx(0.8 / 3)}
