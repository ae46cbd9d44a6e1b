"""Collectors run apart from one another, and their health is told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import cast

import pytest
from prometheus_client.exposition import generate_latest

from laggard.version import __version__
from laggard_exporter import collection, logs
from laggard_exporter.collection import Collection, Collector
from laggard_exporter.samples import Family, Sample, prometheus_families
from tests.exporter.support import parse, starting_with

GAUGE = Family("thing_celsius", "gauge", "A thing.", ("part",))
COUNTER = Family("things_total", "counter", "Things.")


class Source:
    """A collector that yields what it is given, or raises it."""

    def __init__(self, name: str, *results: Iterable[Sample] | Exception) -> None:
        self.name = name
        self._results = iter(results)

    def collect(self) -> Iterator[Sample]:
        result = next(self._results)
        if isinstance(result, Exception):
            raise result
        yield from result


def scrape(*collectors: Collector) -> dict[str, float]:
    """Return what one scrape of a fresh collection says."""
    return parse(generate_latest(Collection(collectors)).decode())


def test_samples_and_health() -> None:
    """A scrape holds every collector's samples, the build, and for each collector success, duration and time."""
    before = time.time()
    samples = scrape(Source("one", [Sample(GAUGE, ("a",), 1.5), Sample(COUNTER, (), 3)]), Source("two", []))
    for name in ("one", "two"):
        assert 0 <= samples.pop(f'laggard_exporter_collector_duration_seconds{{collector="{name}"}}') < 10
        timestamp = samples.pop(f'laggard_exporter_collector_last_success_timestamp_seconds{{collector="{name}"}}')
        assert before <= timestamp <= time.time()
    assert samples == {
        f'laggard_exporter_build_info{{version="{__version__}"}}': 1,
        'thing_celsius{part="a"}': 1.5,
        "things_total": 3,
        'laggard_exporter_collector_success{collector="one"}': 1,
        'laggard_exporter_collector_success{collector="two"}': 1,
    }


@pytest.mark.parametrize(
    "broken",
    [
        RuntimeError("no driver"),
        [Sample(GAUGE, ("a", "too many"), 1)],
        [Sample(COUNTER, (), cast("float", "no number"))],
    ],
)
def test_a_failing_collector(broken: Iterable[Sample] | Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A collector that raises or yields nonsense costs its own samples, is marked, and is logged once."""
    good = [Sample(COUNTER, (), 3)]
    both = Collection([Source("bad", broken, broken), Source("good", good, good)])
    for _ in range(2):
        samples = parse(generate_latest(both).decode())
        assert starting_with(samples, "laggard_exporter_collector_success") == {
            'laggard_exporter_collector_success{collector="bad"}': 0,
            'laggard_exporter_collector_success{collector="good"}': 1,
        }
        assert samples["things_total"] == 3
        assert starting_with(samples, "thing_") == {}
        assert 'laggard_exporter_collector_last_success_timestamp_seconds{collector="bad"}' not in samples
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("collector bad failed: ")


def test_recovery() -> None:
    """The time of the last success stays while a collector fails, and success is 1 again when it works again."""
    success = 'laggard_exporter_collector_success{collector="one"}'
    last = 'laggard_exporter_collector_last_success_timestamp_seconds{collector="one"}'
    collector = Collection([Source("one", [], RuntimeError(), [])])
    first, failed, again = (parse(generate_latest(collector).decode()) for _ in range(3))
    assert (first[success], failed[success], again[success]) == (1, 0, 1)
    assert first[last] == failed[last] <= again[last]


def test_a_collector_that_hangs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """While a collector hangs in one scrape, the next scrapes go on without it."""
    monkeypatch.setattr(collection, "BUSY_TIMEOUT", 0.05)
    release, entered = threading.Event(), threading.Event()

    class Hanging:
        name = "hanging"

        def collect(self) -> Iterator[Sample]:
            entered.set()
            release.wait(20)
            yield Sample(COUNTER, (), 1)

    both = Collection([Hanging(), Source("good", [], [])])
    first: list[bytes] = []
    thread = threading.Thread(target=lambda: first.append(generate_latest(both)))
    thread.start()
    try:
        assert entered.wait(20)
        assert starting_with(parse(generate_latest(both).decode()), "laggard_exporter_collector_success") == {
            'laggard_exporter_collector_success{collector="hanging"}': 0,
            'laggard_exporter_collector_success{collector="good"}': 1,
        }
    finally:
        release.set()
        thread.join(20)
    assert parse(first[0].decode())["things_total"] == 1
    assert [record.getMessage() for record in caplog.records] == [
        "collector hanging is still busy with an earlier scrape after 0.05 s"
    ]


def test_a_series_that_comes_twice() -> None:
    """Of two samples of one series the later is exported: two would spoil the whole scrape."""
    samples = [Sample(GAUGE, ("a",), 1), Sample(GAUGE, ("b",), 2), Sample(GAUGE, ("a",), 3)]
    (family,) = prometheus_families(samples)
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"part": "a"}, 3), ({"part": "b"}, 2)]


def test_the_log_is_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that others choose can not fill the log, nor break its lines."""
    monkeypatch.setattr(logs, "LIMIT", 2)
    log = logs.LogOnce(logging.getLogger(__name__))
    for message in ("a\nb", "a\nb", "c", "d"):
        log(logging.WARNING, message)
    assert [record.getMessage() for record in caplog.records] == [r"'a\nb'", "c"]
