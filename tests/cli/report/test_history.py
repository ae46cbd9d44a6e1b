"""What a report reads of a run over time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from laggard_cli.clusters import Run
from laggard_cli.prometheus import Range, Sample
from laggard_cli.report import history
from laggard_cli.report.span import Span

SPAN = Span(1_000.0, 1_010.0, 10.0, 60.0)


class Server:
    """Holds recorded series of one run, each with further labels."""

    def __init__(self, **more: str) -> None:
        self._labels = {"training_run": "r", **more}

    def say(self, what: str) -> None:
        """Nobody waits."""

    def at(self, expression: str, moment: float) -> list[Sample]:
        """Know nothing else."""
        return []

    def over(self, expression: str, span: Span, step: float | None = None) -> list[Range]:
        """Answer with a series of the run, and with one of a part of it."""
        if not expression.startswith("{__name__=~"):
            return []
        name = {"__name__": "run:training_step_seconds:mean"}
        return [
            Range({**self._labels, **name}, {1_000.0: 0.5, 1_010.0: 0.5}),
            Range({**self._labels, **name, "training_window": "long"}, {1_000.0: 9.0, 1_010.0: 9.0}),
        ]


@pytest.mark.parametrize("more", [{}, {"cluster": "east"}, {"tenant_id": "default-tenant", "receive": "true"}])
def test_what_a_server_adds_to_all_series_hides_none(more: dict[str, str]) -> None:
    """Series of the run as a whole are read, and no others, whatever labels Thanos or Mimir gives to all."""
    found = history.read(cast("Any", Server(**more)), Run(more.get("cluster", ""), "r"), SPAN)
    assert {name: list(values) for name, values in found.facts.items()} == {
        "run:training_step_seconds:mean": [0.5, 0.5]
    }
