"""Prometheus as deploy/prometheus/large.yml has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from laggard_cli.ways import direct
from tests.collector.support import ROOT, newest_prometheus, processes
from tests.rules.engine import free_address
from tests.support.waiting import wait_until


def test_its_heap_may_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest Prometheus collects garbage as the file says, and scrapes exporters and ranks."""
    configuration = tmp_path / "deploy" / "prometheus" / "large.yml"
    shutil.copytree(ROOT / "rules", tmp_path / "rules")
    configuration.parent.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "prometheus" / "large.yml", configuration)
    address = free_address()
    monkeypatch.delenv("GOGC")

    def scraped() -> set[str]:
        answer = direct().get(f"http://{address}/api/v1/targets").json()
        return {each["scrapeUrl"] for each in answer["data"]["activeTargets"]}

    with processes(tmp_path) as started:
        arguments = [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={address}", "--log.level=warn"]
        started.start("prometheus", [str(newest_prometheus()), f"--config.file={configuration}", *arguments])
        started.wait("prometheus", f"http://{address}/-/ready")
        assert direct().get(f"http://{address}/api/v1/status/runtimeinfo").json()["data"]["GOGC"] == "400"
        wait_until(lambda: scraped() == {"http://localhost:9495/metrics", "http://localhost:9495/ranks/metrics"}, 30)
