"""The pack in a real Prometheus and a real Alertmanager, end to end and in real time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

import httpx
import pytest

from tests.rules.engine import Play, Prometheus, free_address, prometheus, serving
from tests.rules.pack import ROOT, alerts
from tests.support.waiting import wait_until


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


#: Causes, and beside them what they inhibit and what they do not: another run, cluster, rank or host, no label.
def _as_in_the_pack(*found: dict[str, str]) -> tuple[dict[str, str], ...]:
    """Return alerts with the kind that the pack gives them."""
    kinds = {rule.name: rule.labels["training_kind"] for rule in alerts()}
    return tuple({**labels, "training_kind": kinds[labels["alertname"]]} for labels in found)


_CAUSES = _as_in_the_pack(
    {"alertname": "TrainingStalled", "severity": "critical", "training_run": "a"},
    {"alertname": "TrainingRankDied", "severity": "critical", "training_run": "c", "training_rank": "3"},
    {"alertname": "TrainingNodeSlow", "severity": "warning", "training_run": "d", "host_name": "x"},
    {"alertname": "TrainingNodeSlow", "severity": "warning", "training_run": "e"},
    {"alertname": "TrainingThermalSlowdown", "severity": "warning", "training_run": "f", "training_rank": "1"},
    {"alertname": "TrainingStalled", "severity": "critical", "training_run": "g", "cluster": "east"},
)
_INHIBITED = _as_in_the_pack(
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "a", "training_rank": "1"},
    {"alertname": "TrainingTelemetryDown", "severity": "warning", "training_run": "a", "training_rank": "2"},
    {"alertname": "TrainingRankMissing", "severity": "critical", "training_run": "c", "training_rank": "3"},
    {"alertname": "TrainingStalled", "severity": "critical", "training_run": "c", "training_rank": "3"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "d", "host_name": "x"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "f", "training_rank": "1"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "g", "cluster": "east"},
)
_TOLD = _as_in_the_pack(
    {"alertname": "TrainingRankMissing", "severity": "critical", "training_run": "a", "training_rank": "3"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "b"},
    {"alertname": "TrainingRankMissing", "severity": "critical", "training_run": "c", "training_rank": "4"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "d", "host_name": "y"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "e"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "f", "training_rank": "2"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "f"},
    {"alertname": "TrainingRankMissing", "severity": "critical"},
    {"alertname": "TrainingStraggler", "severity": "warning"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "a", "cluster": "east"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "g", "cluster": "west"},
    {"alertname": "TrainingStraggler", "severity": "warning", "training_run": "g"},
)


def test_a_cause_inhibits_its_symptoms_alone(tmp_path: Path) -> None:
    """Symptoms are silent while their cause fires, of the same run, rank or host; once it ends, they are told."""
    _needs("prometheus-alertmanager", "prometheus-alertmanager")
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

            def post(alerts: Iterable[dict[str, str]], **times: str) -> bool:
                try:
                    return client.post("/alerts", json=[{"labels": labels, **times} for labels in alerts]).is_success
                except httpx.TransportError:
                    return False

            def inhibited() -> list[dict[str, str]]:
                alerts = client.get("/alerts").json()
                return sorted((each["labels"] for each in alerts if each["status"]["inhibitedBy"]), key=repr_of)

            def repr_of(labels: dict[str, str]) -> str:
                return repr(sorted(labels.items()))

            everything = (*_CAUSES, *_INHIBITED, *_TOLD)
            wait_until(lambda: post(everything), 10)
            wait_until(lambda: len(client.get("/alerts").json()) == len(everything), 10)
            wait_until(lambda: len(inhibited()) >= len(_INHIBITED), 10)
            assert inhibited() == sorted(_INHIBITED, key=repr_of)

            stalled, *others = _CAUSES
            assert post([stalled], endsAt=datetime.now(timezone.utc).isoformat())
            still = [labels for labels in _INHIBITED if labels["training_run"] != "a"]
            # Another cause in the same run goes on to fire.
            wait_until(lambda: post(others) and len(client.get("/alerts").json()) == len(everything) - 1, 10)
            missing = _TOLD[0]
            assert inhibited() == sorted((*still, *_INHIBITED[:2]), key=repr_of)
            assert post([missing], endsAt=datetime.now(timezone.utc).isoformat())
            wait_until(lambda: inhibited() == sorted(still, key=repr_of), 10)
    finally:
        process.terminate()
        process.wait(10)
