"""The text of a scrape is what prometheus_client would write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder

from laggard_exporter.collection import Collection
from laggard_exporter.exposition import Encoder, is_open_metrics
from laggard_exporter.samples import Family, Grouped, Sample
from laggard_exporter.web.application import Application, Request
from tests.exporter.scrape import Scrape

ACCEPTED = (
    "",
    "text/plain;version=0.0.4",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=0.0.1",
    "application/openmetrics-text;version=1.0.0",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
)
#: Spellings that would change the names.
CHANGED = {
    "text/plain;version=1.0.0;escaping=dots": "text/plain; version=1.0.0; charset=utf-8; escaping=underscores",
    "application/openmetrics-text;version=1.0.0;escaping=values": (
        "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
    ),
}

_NAMES = st.from_regex(r"[a-z][a-z_]{0,8}[a-z]", fullmatch=True)
_TEXTS = st.text("aZ0_ \\\"'\n\r\t{},=#\x00\xe9\u20ac\u2028\U0001f600", max_size=8)
_VALUES = st.floats() | st.integers(-(2**63), 2**64).map(float) | st.sampled_from((999999.5, 1e6, 1e16, -1e6, -0.0))


@st.composite
def families(draw: st.DrawFn) -> Family:
    """Draw a family, with or without labels."""
    kind = draw(st.sampled_from(("counter", "gauge")))
    name = draw(_NAMES) + ("_total" if kind == "counter" else "")
    # The word has a meaning of its own in names of gauges, which no name of ours has.
    labels = tuple(draw(st.lists(_NAMES, max_size=3, unique=True)))
    return Family(name.replace("_info", "").replace("_created", ""), kind, draw(_TEXTS), labels)


@st.composite
def scrapes(draw: st.DrawFn) -> Grouped:
    """Draw what some families say."""
    found = draw(st.lists(families(), max_size=3, unique_by=lambda family: family.name.removesuffix("_total")))
    return {
        family: draw(st.dictionaries(st.tuples(*[_TEXTS for _ in family.labels]), _VALUES, max_size=4))
        for family in found
    }


class Fixed(Collection):
    """A collection that says the same at every scrape."""

    def __init__(self, samples: Grouped) -> None:
        super().__init__([])
        self._samples = samples

    def samples(self, names: object = None, timeout: float = 0) -> Iterator[Grouped]:
        """Yield it."""
        yield self._samples


# How long an example takes is the machine's matter.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(scrapes(), min_size=1, max_size=3), st.sampled_from(ACCEPTED))
def test_the_bytes_of_prometheus_client(said: list[Grouped], accepted: str) -> None:
    """Any family, label and value is written as prometheus_client writes it, at the first scrape and the second."""
    encode, content_type = choose_encoder(accepted)
    open_metrics = is_open_metrics(content_type)
    encoder = Encoder()
    for samples in said * 2:
        assert encoder.encode([samples], open_metrics=open_metrics) == encode(Scrape([samples]))


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_negotiation(accepted: str) -> None:
    """Every format that prometheus_client knows is served."""
    samples = {Family("gpu_up", "gauge", "Up.", ("uuid",)): {("GPU-0",): 1.0}}
    encode, content_type = choose_encoder(accepted)
    response = Application(Fixed(samples), "/metrics").respond(Request("GET", "/metrics", {"Accept": accepted}))
    assert (response.headers, response.body) == ({"Content-Type": content_type}, encode(Scrape([samples])))


@pytest.mark.parametrize("accepted", CHANGED)
def test_names_are_never_changed(accepted: str) -> None:
    """Prometheus keeps a name as it was sent, and the rules read ours: another spelling is not served."""
    samples = {Family("gpu_up", "gauge", "Up.", ("uuid",)): {("GPU-0",): 1.0}}
    response = Application(Fixed(samples), "/metrics").respond(Request("GET", "/metrics", {"Accept": accepted}))
    assert response.headers == {"Content-Type": CHANGED[accepted]}
    assert b'\ngpu_up{uuid="GPU-0"} 1.0\n' in response.body


def test_labels_that_are_no_text() -> None:
    """A label with bytes that are no UTF-8 costs these characters and not the scrape."""
    samples = {Family("disk_up", "gauge", "Up.", ("disk",)): {("a\udcff",): 1.0}}
    assert Encoder().encode([samples], open_metrics=False).endswith(b'disk_up{disk="a?"} 1.0\n')


def test_series_that_come_and_go() -> None:
    """What is remembered of series does not grow with all that ever were."""
    family, encoder = Family("job_up", "gauge", "Up.", ("job",)), Encoder()
    for job in range(2000):
        encoder.encode([{family: {(str(job),): 1.0}}], open_metrics=True)
    remembered = encoder._texts[family]._lines
    assert len(remembered) < 100


class Node:
    """A collector with the series of eight GPUs."""

    name = "node"

    def __init__(self) -> None:
        self._families = [Family(f"gpu_{number}_watts", "gauge", "W.", ("uuid",)) for number in range(150)]

    def collect(self) -> Iterator[Sample]:
        """Yield 1200 samples."""
        for family in self._families:
            for gpu in range(8):
                yield Sample(family, (f"GPU-{gpu}",), 1.5)


def test_the_time_of_a_scrape() -> None:
    """A scrape of 1200 series is written several times as fast as by prometheus_client."""
    scrape, encoder = Collection([Node()]), Encoder()
    said = list(scrape.samples())
    encode, _ = choose_encoder("")

    def fastest(run: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(10):
            began = time.thread_time()
            run()
            times.append(time.thread_time() - began)
        return min(times)

    assert fastest(lambda: encoder.encode(said, open_metrics=False)) < fastest(lambda: encode(Scrape([said[0]]))) / 2


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_values_that_change(accepted: str) -> None:
    """A line that is remembered is written again when its value changes, to NaN and back too."""
    family, encoder = Family("job_up", "gauge", "Up.", ("job",)), Encoder()
    encode, content_type = choose_encoder(accepted)
    for value in (1.0, 1.0, 2.0, float("nan"), float("nan"), 1.0):
        samples = {family: {("a",): value}}
        text = encoder.encode([samples], open_metrics=is_open_metrics(content_type))
        assert text == encode(Scrape([samples]))
