"""What is given up when telemetry costs more than its budget, and that it comes back."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from laggard import _process
from laggard._budget import Budget
from laggard._hooks import Hook

SECOND = 1_000_000_000


class Job:
    """Minutes of a job whose telemetry costs a given share of its steps, measured once a second."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.now = self.cost = 0.0

    def run(self, seconds: int, share: float, steps: float = 1.0) -> list[tuple[int, int]]:
        """Second and level of each change."""
        changes: list[tuple[int, int]] = []
        for _ in range(seconds):
            self.now += 1
            self.cost += share * steps * SECOND
            if self.budget.measure(self.now, int(self.cost), int(steps * SECOND)):
                changes.append((int(self.now), self.budget.level))
        return changes


def test_traces_go_first_then_optional_signals(caplog: pytest.LogCaptureFixture) -> None:
    """Above the budget for a minute costs one level, each with one line, and there is none after the last."""
    budget = Budget(0.005)
    assert Job(budget).run(300, 0.02) == [(61, 1), (122, 2)]
    assert budget.optional_rest
    assert [record.message for record in caplog.records] == [
        "telemetry took 2.00 % of the steps in the last 60 s, the budget is 0.50 %: traces of steps are given up",
        "telemetry took 2.00 % of the steps in the last 60 s, the budget is 0.50 %: optional signals are given up",
    ]


def test_it_comes_back_below_half_of_the_budget() -> None:
    """Between half and all of the budget nothing changes, so that a level does not come and go."""
    budget = Budget(0.005)
    job = Job(budget)
    job.run(130, 0.02)
    assert job.run(300, 0.004) == []
    assert job.run(300, 0.001) == [(461, 1), (522, 0)]


def test_within_the_budget_and_without_one_nothing_is_given_up() -> None:
    """A cheap job keeps everything, and so do one without a limit and one that takes no steps."""
    assert Job(Budget(0.005)).run(300, 0.0049) == []
    assert Job(Budget(0.0)).run(300, 0.5) == []
    stalled = Job(Budget(0.005))
    stalled.cost = SECOND
    assert stalled.run(300, 0.0, steps=0.0) == []


def test_one_bad_second_is_not_a_minute() -> None:
    """A short burst, such as the search for outermost modules, is spread over the minute."""
    budget = Budget(0.005)
    job = Job(budget)
    job.run(30, 0.001)
    job.run(1, 0.2)
    assert job.run(100, 0.001) == []


def test_an_optional_hook_rests_and_resumes() -> None:
    """Its patches come off and go on again; a hook that is not optional, or that failed, is left as it is."""
    module = ModuleType("json")
    patched: list[Any] = []

    class Optional(Hook):
        name = "optional"
        optional = True

        def targets(self) -> dict[str, Any]:
            return {"json": lambda _: self.replace(module, "thing", lambda _: patched), "no.such.module": 1 / 1}

    module.thing = 1  # pyright: ignore[reportAttributeAccessIssue]
    hook = Optional(_process.Process())
    hook.installed = True
    hook.targets()["json"](module)
    for _ in range(2):
        hook.rest()
        assert (vars(module)["thing"], hook.installed) == (1, False)
        hook.resume()
        assert vars(module)["thing"] is patched
    hook.uninstall()
    hook.rest()
    hook.resume()
    assert (vars(module)["thing"], hook.installed) == (1, False)
    Optional.optional = False
    hook.installed = True
    hook.rest()
    assert hook.installed
