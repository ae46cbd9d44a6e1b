"""Collectors run apart from one another, and their health is told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest
from prometheus_client.exposition import generate_latest

from laggard.version import __version__
from laggard_exporter import collection, logs
from laggard_exporter.collection import Collection, Collector, UnsupportedError
from laggard_exporter.samples import Family, PartialFailureError, Sample, grouped
from tests.exporter.scrape import Scrape
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
    return scrape_again(Collection(collectors))


def scrape_again(collected: Collection, *names: str, timeout: float = 20) -> dict[str, float]:
    """Return what the next scrape says, of the named collectors or all."""
    return parse(generate_latest(Scrape(collected.samples(names or None, timeout))).decode())


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
        'laggard_exporter_collector_supported{collector="one"}': 1,
        'laggard_exporter_collector_supported{collector="two"}': 1,
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
        samples = scrape_again(both)
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
    first, failed, again = (scrape_again(collector) for _ in range(3))
    assert (first[success], failed[success], again[success]) == (1, 0, 1)
    assert first[last] == failed[last] <= again[last]


class Hanging:
    """A collector that hangs until it is told to go on; counts its runs."""

    name = "hanging"

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.runs = 0

    def collect(self) -> Iterator[Sample]:
        self.runs += 1
        self.entered.set()
        assert self.release.wait(20)
        yield Sample(COUNTER, (), self.runs)


def test_a_collector_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """A scrape ends at its deadline without the collector that hangs, and with all others, as do the next ones."""
    hanging = Hanging()
    both = Collection([hanging, Source("good", [], [], [])])
    try:
        for _ in range(2):
            started = time.monotonic()
            samples = scrape_again(both, timeout=0.2)
            assert 0.2 <= time.monotonic() - started < 2
            assert starting_with(samples, "things_total") == {}
            assert starting_with(samples, "laggard_exporter_collector_success") == {
                'laggard_exporter_collector_success{collector="hanging"}': 0,
                'laggard_exporter_collector_success{collector="good"}': 1,
            }
            assert starting_with(samples, "laggard_exporter_collector_supported") == {
                'laggard_exporter_collector_supported{collector="good"}': 1
            }
    finally:
        hanging.release.set()
    # The run that was asked for meanwhile has its turn, the next scrape gets a new one.
    assert scrape_again(both)["things_total"] in {2, 3}
    assert [record.getMessage() for record in caplog.records] == [
        "collector hanging did not answer within the time of the scrape"
    ]


def test_scrapes_at_the_same_time() -> None:
    """However many scrapes come while a collector works, they share one run, which starts after they were asked."""
    hanging = Hanging()
    collected = Collection([hanging])
    values: list[float] = []

    def one() -> None:
        values.append(scrape_again(collected)["things_total"])

    first = threading.Thread(target=one)
    first.start()
    assert hanging.entered.wait(20)
    others = [threading.Thread(target=one) for _ in range(8)]
    for thread in others:
        thread.start()
    runner: Any = collected._runners["hanging"]
    while runner._next is None or len(runner._next._condition._waiters) < len(others):
        time.sleep(0.005)
    hanging.release.set()
    for thread in (first, *others):
        thread.join(20)
    assert sorted(values) == [1] + [2] * 8


def test_a_node_without_the_source(caplog: pytest.LogCaptureFixture) -> None:
    """A collector whose source the node has not succeeds, says so in a metric, and logs the reason once."""
    caplog.set_level(logging.INFO)
    nothing = UnsupportedError("/sys/class/infiniband does not exist")
    collected = Collection([Source("one", nothing, nothing)])
    for _ in range(2):
        samples = scrape_again(collected)
        assert samples['laggard_exporter_collector_success{collector="one"}'] == 1
        assert samples['laggard_exporter_collector_supported{collector="one"}'] == 0
    assert [record.getMessage() for record in caplog.records] == ["collector one: /sys/class/infiniband does not exist"]


def test_a_collector_that_is_incomplete(caplog: pytest.LogCaptureFixture) -> None:
    """What an incomplete collector yielded is exported, and the collector counts as failed."""

    class Incomplete:
        name = "one"

        def collect(self) -> Iterator[Sample]:
            yield Sample(COUNTER, (), 3)
            raise PartialFailureError("GPU 1 does not answer")

    samples = scrape(Incomplete())
    assert samples["things_total"] == 3
    assert samples['laggard_exporter_collector_success{collector="one"}'] == 0
    assert [record.getMessage() for record in caplog.records] == ["collector one is incomplete: GPU 1 does not answer"]


def test_a_full_process_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started a collector fails, the scrape does not, and the next one tries again."""
    collected = Collection([Source("one", [])])

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert scrape_again(collected)['laggard_exporter_collector_success{collector="one"}'] == 0
    assert scrape_again(collected)['laggard_exporter_collector_success{collector="one"}'] == 1


def test_chosen_collectors() -> None:
    """A scrape of some collectors runs those alone, and tells the health of those alone."""
    collected = Collection([Source("one", [Sample(COUNTER, (), 1)]), Source("two")])
    samples = scrape_again(collected, "one")
    assert samples["things_total"] == 1
    assert starting_with(samples, "laggard_exporter_collector_success") == {
        'laggard_exporter_collector_success{collector="one"}': 1
    }


def test_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems are those of runs in the last half minute; who did not run since is asked, and may not answer."""
    monkeypatch.setattr(collection, "HEALTH_TIMEOUT", 0.1)
    hanging = Hanging()
    collected = Collection([Source("good", []), Source("bad", RuntimeError("no")), hanging])
    expected = {
        "good": "",
        "bad": "collector bad failed: RuntimeError: no",
        "hanging": "collector hanging did not answer within the time of the scrape",
    }
    try:
        # The second time the sources have nothing more to give: they are not asked.
        assert [collected.problems() for _ in range(2)] == [expected] * 2
    finally:
        hanging.release.set()


def test_a_series_that_comes_twice() -> None:
    """Of two samples of one series the later is exported: two would spoil the whole scrape."""
    samples = [Sample(GAUGE, ("a",), 1), Sample(GAUGE, ("b",), 2), Sample(GAUGE, ("a",), 3)]
    assert grouped(samples) == {GAUGE: {("a",): 3, ("b",): 2}}


def test_the_log_is_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that others choose cannot fill the log, nor break its lines."""
    monkeypatch.setattr(logs, "LIMIT", 2)
    log = logs.LogOnce(logging.getLogger(__name__))
    for message in ("a\nb", "a\nb", "c", "d"):
        log(logging.WARNING, message)
    assert [record.getMessage() for record in caplog.records] == [r"'a\nb'", "c"]


def test_collectors_that_hang_take_no_thread_from_the_others() -> None:
    """However many collectors hang, the others run soon; and threads are no more than those that hang and two."""
    hanging = [Hanging() for _ in range(4)]
    for number, each in enumerate(hanging):
        each.name = f"hanging {number}"
    before = threading.active_count()
    collected = Collection([*hanging, Source("good", [], [], [])])
    try:
        for _ in range(2):
            outcomes = collected.outcomes(timeout=2)
            assert [name for name, outcome in outcomes.items() if not outcome.problem] == ["good"]
        assert threading.active_count() - before <= len(hanging) + 2
    finally:
        for each in hanging:
            each.release.set()
