"""The pack in a real Prometheus and a real Alertmanager, end to end and in real time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.rules.engine import Play, Prometheus, free_address, prometheus, serving, wait_until
from tests.rules.pack import ROOT


def _needs(binary: str, package: str) -> None:
    """Skip, or fail in CI, where a server is not installed."""
    if shutil.which(binary) is None:
        text = f"no {binary}: run apt-get install {package}"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)


def _fires(server: Prometheus, *alerts: dict[str, str]) -> bool:
    """Say whether exactly these alerts fire, each with at least these labels."""
    firing = server.firing()
    return len(firing) == len(alerts) and all(
        any(wanted.items() <= found.items() for found in firing) for wanted in alerts
    )


def test_a_run_from_health_to_its_end(tmp_path: Path) -> None:
    """Silent in health, names a rank that is slow in data until it is well again, then a stall; silent at the end."""
    _needs("prometheus", "prometheus")
    play = Play()
    with serving(play) as target, prometheus(target, tmp_path) as server:
        time.sleep(9)
        assert server.firing() == []

        play.data[2] += 0.05
        straggler = {"alertname": "TrainingStraggler", "training_rank": "2", "training_phase": "data"}
        wait_until(lambda: _fires(server, {**straggler, "host_name": "node-1", "severity": "warning"}), 30)

        play.data[2] -= 0.05
        wait_until(lambda: _fires(server), 20)

        play.stuck = 1
        stalled = {"alertname": "TrainingStalled", "training_rank": "1", "training_phase": "forward"}
        wait_until(lambda: _fires(server, {**stalled, "host_name": "node-1", "severity": "critical"}), 12)

        play.state = "finished"
        wait_until(lambda: _fires(server), 4)
        assert server.failures() == []


def test_a_stall_inhibits_the_symptoms_of_its_run_alone(tmp_path: Path) -> None:
    """A stalled run's other alerts are inhibited; those of another run, or without a run, are not."""
    _needs("prometheus-alertmanager", "prometheus-alertmanager")
    alerts = [
        {"alertname": "TrainingStalled", "severity": "critical", "training_run": "a"},
        {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "a", "training_rank": "1"},
        {"alertname": "TrainingTelemetryDown", "severity": "warning", "training_run": "a", "training_rank": "2"},
        {"alertname": "TrainingRankMissing", "severity": "critical", "training_run": "a", "training_rank": "3"},
        {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "b"},
        {"alertname": "TrainingRankMissing", "severity": "critical"},
        {"alertname": "TrainingStraggler", "severity": "warning"},
    ]
    address = free_address()
    process = subprocess.Popen(
        [
            "prometheus-alertmanager",
            f"--config.file={ROOT / 'deploy' / 'alertmanager' / 'alertmanager.yml'}",
            f"--storage.path={tmp_path}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
    )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v2", timeout=5) as client:

            def accepted() -> bool:
                try:
                    return client.post("/alerts", json=[{"labels": labels} for labels in alerts]).is_success
                except httpx.TransportError:
                    return False

            def inhibited() -> list[tuple[str, str]]:
                return sorted(
                    (alert["labels"]["alertname"], alert["labels"].get("training_run", ""))
                    for alert in client.get("/alerts").json()
                    if alert["status"]["inhibitedBy"]
                )

            wait_until(accepted, 10)
            wait_until(lambda: len(client.get("/alerts").json()) == len(alerts), 10)
            wait_until(lambda: len(inhibited()) >= 2, 10)
            assert inhibited() == [("TrainingStraggler", "a"), ("TrainingTelemetryDown", "a")]
    finally:
        process.terminate()
        process.wait(10)
