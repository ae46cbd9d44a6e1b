"""What the card of a local run makes of a server's answers."""

from __future__ import annotations

from typing import Any

import pytest

from laggard_cli.local_run.card import measured
from laggard_cli.prometheus import Sample

RANK = {"training_run": "mine", "training_rank": "0"}
#: Of 400 steps of 10 ms every fourth is recorded; the first one warms up.
SERIES = {
    "training_step_duration_seconds_count": [({}, 100.0)],
    "training_step_duration_seconds_sum": [({}, 1.0)],
    "training_step_own_duration_seconds_sum": [({}, 0.8)],
    "training_phase_duration_seconds_sum": [({"training_phase": "forward"}, 0.8)],
    "training_steps_excluded_duration_seconds_total": [
        ({"training_reason": "sampling"}, 2.99),
        ({"training_reason": "warmup"}, 0.01),
    ],
    "training_telemetry_self_time_seconds_total": [({}, 0.02)],
}


class Server:
    """Answers what the series have."""

    def query(self, expression: str, *_: object, **__: object) -> list[Sample]:
        """Return the samples of the one series that is asked for."""
        (name,) = (name for name in SERIES if f"({name}{{" in expression)
        return [Sample({**RANK, **labels}, value) for labels, value in SERIES[name]]


def test_the_time_of_hooks_is_a_share_of_all_steps() -> None:
    """Of those too that are in no histogram: the hooks of these took time as well."""
    server: Any = Server()
    found = measured(server, "mine", 0, 60)
    assert found.step_seconds == pytest.approx(0.01)
    assert found.phases == {"forward": pytest.approx(0.008)}
    assert found.hooks_share == pytest.approx(0.02 / 4)
