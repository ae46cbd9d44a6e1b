"""Steps too short to record each of them: what is left out is counted, and what is recorded stands for the rest."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from laggard import _identity, _process, _providers
from laggard._publisher import Publisher
from laggard._steps import Step
from laggard.shared.phases import Phase, RankState
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver


# Beside others a few steps wait for a processor as long as hundreds take, and are among the recorded ones or not.
@pytest.mark.timed
@pytest.mark.parametrize("rate", ["", "0"])
def test_of_short_steps_some_are_recorded_and_all_are_counted(
    launcher: Launcher, receiver: Receiver, rate: str
) -> None:
    """Recorded and left-out steps are all steps, in number and time; the recorded ones have the mean of all."""
    printed = launcher.run_forked(PROGRAMS / "short_steps.py", **receiver.environment, LAGGARD_STEP_RATE=rate)
    steps = int(printed.splitlines()[-1])
    step = receiver.value("training.step.duration")
    left_out = receiver.value("training.steps.excluded", training__reason="sampling")
    left_out_time = receiver.value("training.steps.excluded.duration", training__reason="sampling")
    warmup = receiver.value("training.steps.excluded", training__reason="warmup")
    assert receiver.value("training.steps") == steps
    assert step.count + left_out + warmup == steps
    assert receiver.value("training.phase.duration", training__phase="data").count == step.count
    if rate:
        assert left_out == left_out_time == 0
        return
    # Twenty-five a second, and at first some more.
    assert 0.2 * steps < left_out < steps - 200
    # With every eighth step, not one in eight, the mean would be 0.5 ms or 2 ms.
    assert left_out_time / left_out == pytest.approx(step.mean, rel=0.25)


def test_a_pause_does_not_change_how_many_steps_are_recorded(
    process: _process.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand steps a second one in forty is recorded, also after drains in which there was none."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(_providers, "meters", lambda *about: [provider.get_meter(*about)])
    publisher = Publisher(process.recorder, [], deque())
    identity = _identity.from_environment(0, 1)
    publisher.begin(identity, identity.facts(0), "")
    recorded: list[int] = []
    for number in range(5):
        for _ in range(3):  # a pause
            publisher.begin_drain()
            publisher.end_drain(RankState.RUNNING)
        publisher.begin_drain()
        for first in range(number * 1000, (number + 1) * 1000, 50):
            publisher.report([step(first + offset) for offset in range(50)])
        publisher.end_drain(RankState.RUNNING)
        recorded.append(count(reader, "training.step.duration"))
    # The first fifty came before their length was known.
    assert [after - before for before, after in pairwise([0, *recorded])] == [
        pytest.approx(73, abs=2), *[pytest.approx(25, abs=1)] * 4
    ]  # fmt: skip


def step(number: int) -> Step:
    """A step of a millisecond."""
    phases = [0] * len(Phase)
    phases[Phase.OTHER] = 1_000_000
    return Step(number + 1, number * 1_000_000, (number + 1) * 1_000_000, tuple(phases), ())


def count(reader: InMemoryMetricReader, name: str) -> int:
    """How many values a histogram has."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]
    points = [point for metric in metrics if metric.name == name for point in metric.data.data_points]
    return sum(point.count for point in points)  # pyright: ignore[reportAttributeAccessIssue] - of a histogram
