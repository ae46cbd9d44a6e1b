"""What a report makes of the alerts that fired over time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from laggard_cli.clusters import Run
from laggard_cli.prometheus import Range
from laggard_cli.report import verdicts
from laggard_cli.report.span import Span

SPAN = Span(1_000.0, 1_100.0, 10.0, 60.0)


class Server:
    """Holds the series ALERTS of one run."""

    def __init__(self, *fired: tuple[dict[str, str], range]) -> None:
        self._fired = fired

    def say(self, what: str) -> None:
        """Nobody waits."""

    def over(self, expression: str, span: Span) -> list[Range]:
        """Answer with each series at the seconds after the span's begin in which it fired."""
        labels = {"__name__": "ALERTS", "alertstate": "firing", "severity": "warning", "training_run": "a"}
        return [
            Range({**labels, **more}, {span.begin + second: 1.0 for second in seconds}) for more, seconds in self._fired
        ]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what tells problems by alert, phase, ranks, and seconds from their begin to their end."""
    monkeypatch.setattr(verdicts, "_describe", lambda *_: [])

    def reading(*fired: tuple[dict[str, str], range]) -> list[tuple[str, str, list[tuple[str, float, float]]]]:
        problems, _ = verdicts.read(cast("Any", Server(*fired)), cast("Any", None), Run("", "a"), SPAN, [])
        return [
            (
                each.alert,
                each.phase,
                [
                    (firing.labels.get("training_rank", ""), firing.begin - SPAN.begin, firing.end - SPAN.begin)
                    for firing in each.firings
                ],
            )
            for each in problems
        ]

    return reading


def _straggler(rank: int, phase: str) -> dict[str, str]:
    return {"alertname": "TrainingStraggler", "training_rank": str(rank), "training_phase": phase}


def test_a_slow_rank_is_one_problem_whatever_its_phase_was_called(read: Any) -> None:
    """A rule may know the phase only after some evaluations, or two servers may differ for a while."""
    fired = [(_straggler(1, "mixed"), range(0, 30, 10)), (_straggler(1, "data"), range(20, 101, 10))]
    assert read(*fired) == [("TrainingStraggler", "data", [("1", 0, 100)])]


def test_ranks_that_are_slow_in_different_phases_are_different_problems(read: Any) -> None:
    """So are a rank's stretches with a pause between them, and the phases of a run that vary at one time."""
    assert read(
        (_straggler(1, "data"), range(0, 31, 10)),
        (_straggler(2, "data"), range(0, 101, 10)),
        (_straggler(3, "backward"), range(0, 101, 10)),
        (_straggler(1, "forward"), range(80, 101, 10)),
        ({"alertname": "TrainingPhaseVaries", "training_phase": "data"}, range(0, 101, 10)),
        ({"alertname": "TrainingPhaseVaries", "training_phase": "other"}, range(0, 101, 10)),
    ) == [
        ("TrainingPhaseVaries", "data", [("", 0, 100)]),
        ("TrainingPhaseVaries", "other", [("", 0, 100)]),
        ("TrainingStraggler", "data", [("1", 0, 30), ("2", 0, 100)]),
        ("TrainingStraggler", "backward", [("3", 0, 100)]),
        ("TrainingStraggler", "forward", [("1", 80, 100)]),
    ]
