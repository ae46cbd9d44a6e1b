"""Simulated ranks push what real ones do."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from prometheus_client.parser import text_string_to_metric_families

from lab.scale import values
from lab.scale.jobs import jobs
from lab.scale.otlp import Rank, Requests
from lab.scale.pages import Pages
from laggard.shared.metrics import STEP_BOUNDS, TRAINING_METRICS
from laggard.shared.names import prometheus_label, prometheus_name

_RANKS, _FAULT = 16, 30.0

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _samples(request: ResourceMetrics) -> Samples:
    """Return the samples that Prometheus makes of a request."""
    (scope,) = request.scope_metrics
    known = {metric.name: metric for metric in TRAINING_METRICS}
    found: Samples = {}

    for metric in scope.metrics:
        name = prometheus_name(known[metric.name])
        assert metric.unit == known[metric.name].unit
        for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
            labels = {prometheus_label(each.key): each.value.string_value for each in point.attributes}
            if metric.WhichOneof("data") != "histogram":
                found[name, frozenset(labels.items())] = point.as_double
                continue
            found[f"{name}_count", frozenset(labels.items())] = point.count
            found[f"{name}_sum", frozenset(labels.items())] = point.sum
            total = 0
            for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
                total += count
                le = "+Inf" if bound == float("inf") else f"{bound}"
                found[f"{name}_bucket", frozenset({**labels, "le": le}.items())] = total
            # Without bounds it is a sum and a count: the page has no bucket of all.
            if not point.explicit_bounds:
                del found[f"{name}_bucket", frozenset({**labels, "le": "+Inf"}.items())]
    return found


def _parsed(requests: Requests, rank: Rank) -> ResourceMetrics | None:
    made = requests.make(rank)
    if made is None:
        return None
    (found,) = ExportMetricsServiceRequest.FromString(made[0]).resource_metrics
    return found


def _instance(request: ResourceMetrics) -> str:
    return next(a.value.string_value for a in request.resource.attributes if a.key == "service.instance.id")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        """Return what it shows."""
        return self.now


@dataclass
class Simulated:
    """Requests and pages of the same ranks, and their clock."""

    requests: Requests
    pages: Pages
    clock: Clock


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """Return requests and pages of the same ranks."""
    clock = Clock()
    monkeypatch.setattr(values, "time", clock)
    runs = [replace(job, startup=1.0, compile=0.0, down=5.0, lost_scrapes=0.0) for job in jobs(_RANKS, 0.05, _FAULT)]
    known = values.Values(runs, tick=1.0)
    return Simulated(Requests(runs, known), Pages(runs, known), clock)


def test_a_request_is_what_the_page_says(simulated: Simulated) -> None:
    """Pushed and scraped, a rank's samples are the same, value for value, before the first step and after many."""
    requests, pages = simulated.requests, simulated.pages
    for seconds, each in ((0.5, 39), (10.0, 71)):
        simulated.clock.now += seconds
        pushed: Samples = {}
        points = 0
        for rank in requests.ranks:
            request = _parsed(requests, rank)
            if request is not None:
                found = _samples(request)
                pushed |= found
                points += rank.content.points
                assert {**rank.content.samples} == _counted(request)
        text = "".join(pages.page(path).decode() for path in pages.paths if path.endswith("/ranks/metrics"))
        scraped = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert pushed == scraped
        assert points == each * _RANKS


def _counted(request: ResourceMetrics) -> dict[str, int]:
    """Return how many samples of each name a request becomes."""
    known = {metric.name: metric for metric in TRAINING_METRICS}
    found: dict[str, int] = {}
    for metric in request.scope_metrics[0].metrics:
        name, kind = prometheus_name(known[metric.name]), str(metric.WhichOneof("data"))
        points = getattr(metric, kind).data_points
        if kind != "histogram":
            found[name] = len(points)
        else:
            found[f"{name}_bucket"] = sum(len(point.bucket_counts) for point in points)
            found[f"{name}_sum"] = found[f"{name}_count"] = len(points)
    return found


def test_cumulative_sums_of_now(simulated: Simulated) -> None:
    """As the SDK has it: sums since the process began, points of now, the default buckets, the scope's name."""
    requests = simulated.requests
    rank = requests.ranks[0]
    before = time.time_ns()
    made = requests.make(rank)
    assert made is not None
    (request,) = ExportMetricsServiceRequest.FromString(made[0]).resource_metrics
    assert (request.scope_metrics[0].scope.name, made[1]) == ("laggard", pytest.approx(before // 10**6, abs=2000))
    by_name = {metric.name: metric for metric in request.scope_metrics[0].metrics}
    steps, duration = by_name["training.steps"].sum, by_name["training.step.duration"].histogram
    assert (steps.is_monotonic, steps.aggregation_temporality, duration.aggregation_temporality) == (True, 2, 2)
    assert list(duration.data_points[0].explicit_bounds) == list(STEP_BOUNDS)
    times = {point.time_unix_nano for point in (*steps.data_points, *duration.data_points)}
    assert times == {made[1] * 10**6}
    assert 0 <= before - steps.data_points[0].start_time_unix_nano < 60e9


def test_a_run_that_begins_anew(simulated: Simulated) -> None:
    """Its processes are others, with others' names, and never two of a rank at once."""
    requests = simulated.requests
    anew = [rank for rank in requests.ranks if rank.run == "other-0"]
    assert len(anew) == 2 * len({rank.rank for rank in anew})
    seen: dict[str, set[str]] = {}
    for _ in range(45):
        simulated.clock.now += 1
        found = [(rank.rank, request) for rank in anew if (request := _parsed(requests, rank)) is not None]
        assert len(found) == len({rank for rank, _ in found})
        for rank, request in found:
            seen.setdefault(rank, set()).add(_instance(request))
    assert {len(each) for each in seen.values()} == {2}
