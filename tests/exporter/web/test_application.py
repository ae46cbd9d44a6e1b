"""What is served at which path, and what a client may ask for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus

import pytest

from laggard_exporter import collection
from laggard_exporter.collection import Collection
from laggard_exporter.samples import Family, Sample
from laggard_exporter.web.application import Application, Request, scrape_timeout
from tests.exporter.support import parse, starting_with

GAUGE = Family("thing_celsius", "gauge", "A thing.", ("name",))


class Thing:
    """A collector with one sample, or an error."""

    def __init__(self, name: str, *, seconds: float = 0) -> None:
        self.name = name
        self.broken = False
        self._seconds = seconds

    def collect(self) -> Iterator[Sample]:
        if self.broken:
            raise RuntimeError("no driver")
        time.sleep(self._seconds)
        yield Sample(GAUGE, (self.name,), 1)


def ask(things: Iterable[Thing], target: str, **headers: str) -> tuple[HTTPStatus, str]:
    """Return status and text of a GET."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = Application(Collection(list(things)), "/metrics").respond(Request("GET", target, named))
    return response.status, response.body.decode()


def things(text: str) -> set[str]:
    """Return the names of the collectors that gave something."""
    return {series.partition('"')[2].partition('"')[0] for series in starting_with(parse(text), "thing_celsius")}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"a", "b", "c"}),
        ("?other=1", {"a", "b", "c"}),
        ("?collect[]=a", {"a"}),
        ("?collect%5B%5D=a&collect[]=c", {"a", "c"}),
        ("?exclude[]=a", {"b", "c"}),
        ("?exclude[]=a&exclude[]=b&exclude[]=c", set[str]()),
    ],
)
def test_chosen_collectors(query: str, expected: set[str]) -> None:
    """collect[] and exclude[] choose among the collectors, as node_exporter does it, health included."""
    status, text = ask(map(Thing, "abc"), f"/metrics{query}")
    assert (status, things(text)) == (HTTPStatus.OK, expected)
    health = starting_with(parse(text), "laggard_exporter_collector_success")
    assert health == {f'laggard_exporter_collector_success{{collector="{name}"}}': 1 for name in expected}


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("?collect[]=d", "no collector 'd' is switched on; there are a, b, c"),
        ("?exclude[]=", "no collector '' is switched on; there are a, b, c"),
        ("?collect[]=a&exclude[]=b", "collect[] and exclude[] exclude each other; give one of them"),
        ("?" + "a=b&" * 101, "Max number of fields exceeded"),
    ],
)
def test_a_bad_choice(query: str, line: str) -> None:
    """A choice that cannot be made is one line and status 400."""
    assert ask(map(Thing, "abc"), f"/metrics{query}") == (HTTPStatus.BAD_REQUEST, f"{line}\n")


def test_the_landing_page() -> None:
    """The landing page leads to all pages and names the collectors."""
    status, text = ask([Thing("a"), Thing("<b>")], "/")
    assert status is HTTPStatus.OK
    for part in ('href="/metrics"', 'href="/-/healthy"', 'href="/-/ready"', "Collectors: a, &lt;b&gt;"):
        assert part in text


def test_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready tells the truth about each collector, is 503 while all fail, and 200 again when one works."""
    monkeypatch.setattr(collection, "HEALTH_SECONDS", 0.0)
    one, two = Thing("one"), Thing("two")
    application = Application(Collection([one, two]), "/metrics")

    def ready() -> tuple[int, str]:
        response = application.respond(Request("GET", "/-/ready", {}))
        return response.status, response.body.decode()

    bad = "collector {} failed: RuntimeError: no driver"
    assert ready() == (200, "laggard-exporter is ready.\none: ok\ntwo: ok\n")
    one.broken = True
    assert ready() == (200, f"laggard-exporter is ready.\none: {bad.format('one')}\ntwo: ok\n")
    two.broken = True
    assert ready() == (
        503,
        f"laggard-exporter is not ready: every collector fails.\none: {bad.format('one')}\ntwo: {bad.format('two')}\n",
    )
    assert application.respond(Request("GET", "/-/healthy", {})).status == 200
    one.broken = False
    assert ready()[0] == 200


def test_ready_without_collectors() -> None:
    """An exporter without collectors is ready: it does what it was told."""
    assert ask([], "/-/ready") == (HTTPStatus.OK, "laggard-exporter is ready.\n")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 9.5),
        ("", 9.5),
        ("15", 14.5),
        ("2.5", 2),
        ("0.6", 0.3),
        ("0", 9.5),
        ("-1", 9.5),
        ("nan", 9.5),
        ("inf", 9.5),
        ("1e9", 9.5),
        ("soon", 9.5),
    ],
)
def test_the_time_of_a_scrape(header: str | None, seconds: float) -> None:
    """Collectors have a little less time than Prometheus says that it waits; nonsense is the default."""
    assert scrape_timeout(header) == seconds


def test_the_time_is_kept() -> None:
    """A scrape answers in the time that its header gives, with what there is until then."""
    started = time.monotonic()
    status, text = ask(
        [Thing("quick"), Thing("slow", seconds=3)], "/metrics", X_Prometheus_Scrape_Timeout_Seconds="0.4"
    )
    assert time.monotonic() - started < 0.4
    assert (status, things(text)) == (HTTPStatus.OK, {"quick"})
    assert parse(text)['laggard_exporter_collector_success{collector="slow"}'] == 0
