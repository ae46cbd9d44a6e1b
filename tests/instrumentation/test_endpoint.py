"""Zero code: OpenTelemetry's launcher and its plain environment variables give one scrape target a rank."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from laggard import prometheus
from laggard.shared import metrics
from laggard.shared.attributes import IDENTITY
from laggard.shared.names import prometheus_label, prometheus_name
from tests.support.launch import PROGRAMS, Launcher


def free_base_port() -> int:
    """A port with two free ones behind it, most likely."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1] - 3


def scrape(port: int) -> str:
    """One page of metrics, as soon as all of it is there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                page = response.read().decode()
            # What a step has comes when the first is whole, what the rank is doing when the drain looks at it next.
            if "training_step_duration_seconds_count" in page and "training_rank_state" in page:
                return page
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_each_rank_serves_its_metrics_on_base_plus_local_rank(launcher: Launcher) -> None:
    """The page has only our names and labels, one identity, no scope labels and no process-wide series."""
    base = free_base_port()
    process = launcher.fork_ranks(
        2,
        PROGRAMS / "name_run.py",
        OTEL_METRICS_EXPORTER="laggard_prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
        OTEL_EXPORTER_PROMETHEUS_PORT=str(base),
        LAGGARD_WARMUP_STEPS="1",
    )
    pages = [scrape(base), scrape(base + 1)]
    process.communicate(timeout=60)
    assert process.returncode == 0
    known = {prometheus_name(metric).removesuffix("_total"): metric for metric in metrics.TRAINING_METRICS}
    for rank, page in enumerate(pages):
        series = Counter[str]()
        for family in text_string_to_metric_families(page):
            if family.name == "target_info":
                continue
            metric = known[family.name]
            allowed = {prometheus_label(name) for name in (*IDENTITY, *metric.attributes)}
            for sample in family.samples:
                labels = set(sample.labels) - {"le"}
                assert labels <= allowed
                assert sample.labels["training_run"] == "test"
                assert sample.labels["training_rank"] == str(rank)
                series[family.name] += 1
        assert series["training_step_duration_seconds"] == 19
        assert series["training_rank_state"] == 4
        assert sum(series.values()) <= 200


def test_clients_that_ask_at_once_share_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 requests one makes the page and all get it, with headers of their own; another or a later page is made."""
    made: list[str] = []

    def app(environ: dict[str, str], start_response: Any) -> list[bytes]:
        time.sleep(0.05)
        made.append(environ["QUERY_STRING"])
        start_response("200 OK", [("Page", str(len(made)))])
        return [environ["QUERY_STRING"].encode()]

    now = [0.0]
    monkeypatch.setattr(prometheus, "time", SimpleNamespace(monotonic=lambda: now[0]))
    page = prometheus._Page(app)

    def ask(query: str) -> tuple[list[bytes], tuple[Any, ...]]:
        heard: list[tuple[Any, ...]] = []
        body = page(
            {"QUERY_STRING": query}, lambda status, headers: heard.append((status, headers[:], headers.clear()))
        )
        return body, heard[0][:2]

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, ["a"] * 20))
    assert answers == [([b"a"], ("200 OK", [("Page", "1")]))] * 20
    assert ask("b") == ([b"b"], ("200 OK", [("Page", "2")]))
    now[0] = 0.3
    assert ask("b") == ([b"b"], ("200 OK", [("Page", "3")]))
    assert made == ["a", "b", "b"]
