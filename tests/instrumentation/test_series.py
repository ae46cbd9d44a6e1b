"""How many series a rank has with every signal in use: on the page that Prometheus would scrape."""

from __future__ import annotations

import os
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from laggard.shared import environment
from laggard.shared.metrics import COMPACT, TRAINING_METRICS, Metric
from laggard.shared.names import prometheus_name
from laggard.shared.phases import Phase
from laggard.shared.statefile import read
from tests.support.launch import PROGRAMS, Launcher
from tests.support.ports import free_port

#: Profile of each rank of `every_signal.py`.
DEFAULT, COMPACTED, FULL, ALSO_DEFAULT = range(4)
QUANTILE = "training_phase_duration_quantile_seconds"
#: Series of metrics whose attribute has more values than an ordinary process shows.
VALUES = {
    "training_memory_usage_bytes": 5,
    "training_memory_limit_bytes": 2,
    "training_gc_collections": 3,
    "training_gc_duration_seconds": 3,
    "training_nonfinite": 2,
    "training_signal_available": 5,
    "training_checkpoint_duration_seconds": 2 * 2,
    QUANTILE: (len(Phase) - 2) * 3,
    "training_steps_excluded": 6,
    "training_telemetry_dropped": 5,
}


def page(port: int) -> str:
    """The page of a rank, empty as long as there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            return response.read().decode()
    except OSError:
        return ""


def ports(launcher: Launcher) -> dict[int, int]:
    """The port of each rank that serves one, from its state file."""
    files = [read(path) for path in launcher.state_directory.glob("*")]
    return {file.facts.rank: file.facts.metrics_port for file in files if file.facts.metrics_port}


def families(metrics: tuple[Metric, ...]) -> set[str]:
    """Names of metrics as a page has them."""
    return {prometheus_name(metric).removesuffix("_total") for metric in metrics}


def test_the_series_of_each_profile(launcher: Launcher, tmp_path: Path) -> None:
    """On four ranks of a DDP job: every metric is there, in at most 200 series, and 60 in the compact profile."""
    job = launcher.fork_ranks(
        4,
        PROGRAMS / "every_signal.py",
        tmp_path / "end",
        tmp_path,
        OTEL_METRICS_EXPORTER="laggard_prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
        OTEL_EXPORTER_PROMETHEUS_PORT=str(free_port()),
        LAGGARD_WARMUP_STEPS="1",
    )
    expected = {DEFAULT: families(TRAINING_METRICS), COMPACTED: families(COMPACT)}
    series: dict[int, Counter[str]] = {}
    deadline = time.monotonic() + 90
    settled = 0
    while settled < 3:  # nothing new in as many looks
        time.sleep(1)
        before = series
        series = {}
        for rank, port in ports(launcher).items():
            found = [family for family in text_string_to_metric_families(page(port)) if family.name != "target_info"]
            series[rank] = Counter({family.name: len(family.samples) for family in found})
        complete = all(set(series.get(rank, ())) >= names for rank, names in expected.items())
        # The last percentile is told from the hundredth step on.
        complete &= series.get(DEFAULT, {}).get(QUANTILE) == VALUES[QUANTILE]
        settled = settled + 1 if complete and series == before else 0
        if job.poll() is not None or time.monotonic() > deadline:
            break
    (tmp_path / "end").touch()
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 0, errors[-4000:]
    for rank, counts in sorted(series.items()):
        print(f"rank {rank}: {counts.total()} series:", dict(counts))
    assert series[DEFAULT].keys() == series[ALSO_DEFAULT].keys() == series[FULL].keys() == families(TRAINING_METRICS)
    assert series[COMPACTED].keys() == families(COMPACT)
    assert max(series[rank].total() for rank in (DEFAULT, ALSO_DEFAULT)) <= 200
    assert series[COMPACTED].total() <= 60
    assert {name: series[DEFAULT][name] for name in VALUES} == VALUES
    # A histogram without buckets is a sum and a count; with them it has 16 bounds and the bucket of all too.
    bucketless, full = 2, 19
    phases, operations = len(Phase), 11
    for rank, each in ((DEFAULT, bucketless), (FULL, full)):
        assert series[rank]["training_phase_duration_seconds"] == phases * each
        assert series[rank]["training_collective_duration_seconds"] == operations * each
        assert series[rank]["training_step_duration_seconds"] == full
    assert series[COMPACTED]["training_step_own_duration_seconds"] == bucketless


def test_a_profile_that_does_not_exist_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the variable, its value and what there is; the default is used, however often it is asked."""
    monkeypatch.setenv("LAGGARD_SERIES", f"tiny{os.getpid()}")
    for _ in range(3):
        assert environment.choice("LAGGARD_SERIES", "default", "compact") == "default"
    assert [record.message for record in caplog.records] == [
        f"LAGGARD_SERIES must be one of default, compact, got 'tiny{os.getpid()}'; using default"
    ]
