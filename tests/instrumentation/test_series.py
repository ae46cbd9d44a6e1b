"""How many series a rank has with every signal in use: on the page that Prometheus would scrape."""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from laggard import environment
from laggard.conventions import COMPACT, TRAINING_METRICS, prometheus_name
from tests.support.launch import PROGRAMS, Launcher

PROFILES = {
    "default": {},
    "compact": {"LAGGARD_SERIES": "compact", "LAGGARD_HISTOGRAMS": "full"},
    "full": {"LAGGARD_HISTOGRAMS": "full"},
}


def page(port: int) -> str:
    """The page of a rank that has reported all of its signals, two drains after the first."""
    deadline = time.monotonic() + 60
    seen = 0
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                text = response.read().decode()
        except OSError:
            text = ""
        seen += 'training_phase="evaluation"' in text
        if seen > 5:  # three seconds of drains: the other signals are there too
            return text
        assert time.monotonic() < deadline
        time.sleep(0.5)


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_series_of_each_profile(launcher: Launcher, tmp_path: Path) -> None:
    """At most 200 by default and 60 in the compact profile; what the compact one keeps is what the table says."""
    ports = {profile: free_port() for profile in PROFILES}
    running = [
        launcher.start(
            "python",
            PROGRAMS / "every_signal.py",
            tmp_path / "end",
            tmp_path / f"store-{profile}",
            OTEL_METRICS_EXPORTER="laggard_prometheus",
            OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
            OTEL_EXPORTER_PROMETHEUS_PORT=str(ports[profile]),
            LAGGARD_RUN=profile,
            **variables,
        )
        for profile, variables in PROFILES.items()
    ]
    pages = {profile: page(port) for profile, port in ports.items()}
    (tmp_path / "end").touch()
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    series: dict[str, Counter[str]] = {}
    for profile, text in pages.items():
        families = [family for family in text_string_to_metric_families(text) if family.name != "target_info"]
        series[profile] = Counter({family.name: len(family.samples) for family in families})
        print(profile, series[profile].total(), dict(series[profile]))
    every = {prometheus_name(metric).removesuffix("_total") for metric in TRAINING_METRICS}
    compact = {prometheus_name(metric).removesuffix("_total") for metric in COMPACT}
    assert set(series["default"]) == set(series["full"]) <= every
    assert set(series["compact"]) == compact & set(series["default"])
    assert series["default"].total() <= 200
    assert series["compact"].total() <= 60
    phases = 9
    assert series["default"]["training_phase_duration_seconds"] == phases * 3
    assert series["compact"]["training_phase_duration_seconds"] == phases * 3
    assert series["full"]["training_phase_duration_seconds"] == phases * 19
    assert [series[profile]["training_step_duration_seconds"] for profile in PROFILES] == [19, 3, 19]


def test_a_profile_that_does_not_exist_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the variable, its value and what there is; the default is used, however often it is asked."""
    monkeypatch.setenv("LAGGARD_SERIES", f"tiny{os.getpid()}")
    for _ in range(3):
        assert environment.choice("LAGGARD_SERIES", "default", "compact") == "default"
    assert [record.message for record in caplog.records] == [
        f"LAGGARD_SERIES='tiny{os.getpid()}' is none of default, compact; using default"
    ]
