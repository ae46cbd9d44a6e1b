"""Every query of a command is over one value for each rank, as the rules are."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from laggard_cli.prometheus import Prometheus, Range, Sample
from tests.rules import once
from tests.rules.pack import ALERTS, alerts, rules

#: Of a server of our own, which scrapes one page.
OF_A_TARGET = "sum_over_time(up["
#: Of a rule that a hostile server says to have, and of a test of the way to a server.
OF_NO_COMMAND = ("x", "up")

#: Here and not at the first query: a test may measure how long an answer takes.
RECORDED = {**once.keys(rules()), **ALERTS, "ALERTS_FOR_STATE": ALERTS["ALERTS"]}


@functools.cache
def mistakes(expression: str) -> list[str]:
    """Return what a second path would change in the answer to a query."""
    of_the_pack = expression in {rule.expr.strip() for rule in alerts()}
    if of_the_pack or expression in OF_NO_COMMAND or expression.startswith(OF_A_TARGET):
        return []
    try:
        return once.mistakes(expression, RECORDED)
    except ValueError:  # no server takes it, and the command says so
        return []


@pytest.fixture(autouse=True)
def _one_value_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look at each query that a command sends, while a test of it runs."""
    found: set[str] = set()
    query, ranges = Prometheus.query, Prometheus.ranges

    def looked_at(self: Prometheus, expression: str, at: float | None = None, by: tuple[str, ...] = ()) -> list[Sample]:
        found.update(f"{expression}: {each}" for each in mistakes(expression))
        return query(self, expression, at, by)

    def looked_over(self: Prometheus, expression: str, begin: float, end: float, step: float) -> list[Range]:
        found.update(f"{expression}: {each}" for each in mistakes(expression))
        return ranges(self, expression, begin, end, step)

    monkeypatch.setattr(Prometheus, "query", looked_at)
    monkeypatch.setattr(Prometheus, "ranges", looked_over)
    yield
    assert not found


@pytest.fixture(autouse=True)
def _no_run_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    """Find no local run that somebody has at work beside the tests."""
    monkeypatch.setattr("laggard_cli.live.PREFIX", "laggard-none-")
