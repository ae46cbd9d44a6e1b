"""Which steps become traces, and what is in one."""

from __future__ import annotations

from collections import deque

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from laggard import _identity, _providers
from laggard._spans import Spans
from laggard._steps import Step
from laggard.shared.phases import Phase

MS = 1_000_000
Collectives = deque[tuple[str, int, int]]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the spans of this test go."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(_providers, "tracer_provider", lambda: provider)
    return exporter


def spans_of(rank: int, collectives: Collectives | None = None, *, every: int = 0, slow: float = 2.0) -> Spans:
    """The span writer of one rank."""
    identity = _identity.Identity("run", rank, rank, 8, 0, "", "", "")
    return Spans(identity, deque() if collectives is None else collectives, every, slow, describe=lambda _: {})


def step(number: int, milliseconds: float = 10, excluded: str = "") -> Step:
    """A step with one interval of communication of half its length."""
    begin = number * 1000 * MS
    end = begin + int(milliseconds * MS)
    phases = [0] * len(Phase)
    phases[Phase.COMMUNICATION] = phases[Phase.OTHER] = (end - begin) // 2
    interval = (Phase.COMMUNICATION, begin, begin + (end - begin) // 2)
    return Step(number, begin, end, tuple(phases), (interval,), excluded)


def roots(exporter: InMemorySpanExporter) -> dict[int, ReadableSpan]:
    """Root spans by the number of their step."""
    found = {span.attributes["training.step"]: span for span in exporter.get_finished_spans() if span.attributes}
    return {int(str(number)): span for number, span in found.items() if span.name == "training.step"}


def context_of(span: ReadableSpan) -> trace.SpanContext:
    """A span's own context."""
    context = span.context
    assert context is not None
    return context


def test_a_step_is_slow_above_a_multiple_of_the_running_median(exporter: InMemorySpanExporter) -> None:
    """Just below twice the median is not traced, just above is; excluded steps do not move the median."""
    spans = spans_of(0)
    for number in range(1, 21):
        spans.steps([step(number, 10, "")])
        spans.steps([step(number + 100, 1000, "first_batch")])
    assert roots(exporter) == {}
    spans.begin_drain(enabled=True)
    spans.steps([step(201, 19.9)])
    spans.steps([step(202, 20.1)])
    assert list(roots(exporter)) == [202]
    slow = roots(exporter)[202].attributes
    assert slow is not None
    assert slow["training.step.slow"] is True
    # The job becomes slower as a whole: what was slow is normal after half of the window.
    for number in range(300, 600):
        spans.steps([step(number, 30)])
    exporter.clear()
    spans.begin_drain(enabled=True)
    spans.steps([step(601, 30)])
    assert roots(exporter) == {}


def test_the_sampled_steps_are_the_same_on_all_ranks_and_share_a_trace(exporter: InMemorySpanExporter) -> None:
    """One step in so many by its number; spans of a step have one trace id on every rank, of two steps never."""
    traces: list[dict[int, int]] = []
    for rank in (0, 5):
        exporter.clear()
        spans = spans_of(rank, every=3)
        spans.begin_drain(enabled=True)
        for number in range(1, 10):
            spans.steps([step(number)])
        traces.append({number: context_of(span).trace_id for number, span in roots(exporter).items()})
    assert list(traces[0]) == [3, 6, 9]
    assert traces[0] == traces[1]
    assert len(set(traces[0].values())) == 3


def test_of_short_steps_a_share_of_the_traces_is_left_and_every_slow_one(exporter: InMemorySpanExporter) -> None:
    """One in ten of each tenth step, scattered; the more are left out, the fewer of the same are left."""
    left: dict[int, list[int]] = {}
    for one_in in (10, 40):
        exporter.clear()
        spans = spans_of(0, every=10)
        for number in range(1, 1001):
            spans.begin_drain(enabled=True)
            spans.steps([step(number, 30 if number == 995 else 10)], one_in)
        left[one_in] = list(roots(exporter))
    assert left[10] == [50, 130, 260, 340, 470, 600, 680, 810, 890, 940, 995]
    assert left[40] == [340, 890, 995]


def test_traces_of_one_drain_are_bounded_and_none_above_the_budget(exporter: InMemorySpanExporter) -> None:
    """A run in which every step is chosen pays for ten a drain, and for none while traces are given up."""
    spans = spans_of(0, every=1)
    spans.begin_drain(enabled=True)
    for number in range(1, 30):
        spans.steps([step(number)])
    assert list(roots(exporter)) == list(range(1, 11))
    exporter.clear()
    spans.begin_drain(enabled=False)
    spans.steps([step(40)])
    assert roots(exporter) == {}


def test_slow_collectives_stand_in_the_step_by_name(exporter: InMemorySpanExporter) -> None:
    """One that took a twentieth of the step has a span with its operation and times; others of the time have none."""
    begin = 7 * 1000 * MS
    collectives: Collectives = deque(
        [
            ("barrier", begin - 5 * MS, begin + MS),  # belongs to the step before
            ("broadcast", begin, begin + MS // 4),
            ("all_reduce", begin + MS, begin + 4 * MS),
        ]
    )
    spans = spans_of(0, collectives, every=7)
    spans.begin_drain(enabled=True)
    spans.steps([step(7)])
    children = {span.name: span for span in exporter.get_finished_spans()}
    assert sorted(children) == ["training.collective", "training.communication", "training.step"]
    root, child = children["training.step"], children["training.collective"]
    assert child.parent is not None
    assert child.parent.span_id == context_of(root).span_id
    assert child.attributes is not None
    assert child.attributes["training.collective.operation"] == "all_reduce"
    assert root.start_time is not None
    assert child.start_time is not None
    assert child.end_time is not None
    assert (child.start_time - root.start_time, child.end_time - child.start_time) == (MS, 3 * MS)
