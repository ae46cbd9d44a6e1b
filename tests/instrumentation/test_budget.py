"""What is given up when telemetry costs more than its budget, and that it comes back."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider as SdkProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, TracerProvider

from laggard import _process, _providers
from laggard._budget import Budget, Processor
from laggard.shared.phases import Phase
from tests.instrumentation.inside import hook_named
from tests.support.measured import Measured

SECOND = 1_000_000_000


class Job:
    """Minutes of a job whose telemetry costs a given share of its steps, measured once a second."""

    def __init__(self, budget: Budget, *, traced: bool = True) -> None:
        self.budget = budget
        self.traced = traced
        self.now = self.cost = 0.0

    def run(self, seconds: int, share: float, steps: float = 1.0) -> list[tuple[int, int]]:
        """Second and level of each change."""
        changes: list[tuple[int, int]] = []
        for _ in range(seconds):
            self.now += 1
            self.cost += share * steps * SECOND
            if self.budget.measure(self.now, int(self.cost), int(steps * SECOND), traced=self.traced):
                changes.append((int(self.now), self.budget.level))
        return changes


def test_traces_go_first_then_optional_signals(caplog: pytest.LogCaptureFixture) -> None:
    """Above the budget for a minute costs one level, each with one line, and there is none after the last."""
    caplog.set_level(logging.INFO)
    budget = Budget(0.005)
    assert Job(budget).run(300, 0.02) == [(61, 1), (122, 2)]
    assert budget.optional_rest
    assert [record.message for record in caplog.records] == [
        "telemetry took 2.00 % of the steps in the last 60 s, the budget is 0.50 %: traces of steps are given up",
        (
            "telemetry took 2.00 % of the steps in the last 60 s, the budget is 0.50 %: "
            "durations of single collectives and fetches are given up, memory and workers are looked at less often"
        ),
    ]


def test_traces_that_nobody_gets_are_not_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """What costs something goes at once, and comes back at once; no line speaks of traces."""
    caplog.set_level(logging.INFO)
    job = Job(Budget(0.005), traced=False)
    assert job.run(300, 0.02) == [(61, 2)]
    assert job.run(300, 0.001) == [(356, 0)]
    assert len(caplog.records) == 2
    assert "traces" not in caplog.text


def test_spans_without_a_processor_reach_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under ``laggard run``, whose launcher makes a provider for no exporter; a processor may be added later."""
    given: list[TracerProvider] = [ProxyTracerProvider(), NoOpTracerProvider()]
    monkeypatch.setattr(_providers, "get_tracer_provider", lambda: given[-1])
    assert not _providers.traces_arrive()
    given.pop()
    assert not _providers.traces_arrive()
    provider = SdkProvider(shutdown_on_exit=False)
    given.append(provider)
    assert not _providers.traces_arrive()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    assert _providers.traces_arrive()
    # That of another SDK, of which nothing is known.
    given.append(cast("TracerProvider", object()))
    assert _providers.traces_arrive()


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


def test_a_wait_for_a_processor_is_no_cost(tmp_path: Path) -> None:
    """Of a thread that waits for a processor three quarters of its time, a quarter counts; without a word, all does."""
    processor = Processor(tmp_path)
    assert processor.used(7, 1000) == 1000
    statistics = tmp_path / "7" / "schedstat"
    statistics.parent.mkdir()
    for ran, waited, used in ((5_000, 0, 1000), (6_000, 3_000, 250), (8_000, 3_000, 1000), (8_000, 9_000, 0)):
        statistics.write_text(f"{ran} {waited} 12\n")
        assert processor.used(7, 1000) == used
    assert processor.used(8, 1000) == 1000


def drained(process: _process.Process, times: int) -> Counter[str]:
    """What the hooks measured in so many drains, by metric."""
    measured = Measured()
    report: Any = measured
    for _ in range(times):
        for hook in process._parts:
            if hook.due():
                hook.guarded(hook.report)(report)
    return Counter({name: len(values) for (name, *_), values in measured.values.items()})


def test_what_rests_costs_nothing_and_comes_back(process: _process.Process) -> None:
    """Level 2 ends durations of collectives and reads the system less; communication goes on; level 0 has all again."""
    collectives: Any = hook_named(process, "collectives")
    wait = collectives._wrap_wait(lambda _work: time.sleep(0.002))
    measured: dict[str, Counter[str]] = {}
    for level in ("before", "rest", "after"):
        for hook in process._parts:
            hook.rest() if level == "rest" else hook.resume()
        process.recorder.drain()
        for _ in range(3):
            wait(None)
        assert [event[0] for event in process.recorder.drain()].count(Phase.COMMUNICATION) == 3
        measured[level] = drained(process, 80)
    # Resident set and limit of the process, each time that /proc is read: in one drain of five, at rest in one of 16.
    reads = measured["before"]["training.memory.usage"]
    assert reads in (16, 32)
    for level in ("before", "after"):
        assert measured[level]["training.collective.duration"] == 3
        assert measured[level]["training.memory.usage"] == reads
    assert measured["rest"]["training.collective.duration"] == 0
    assert measured["rest"]["training.memory.usage"] == reads * 5 / 16
    assert process.exposure.waited == 9
