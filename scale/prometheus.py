"""A real Prometheus with the whole rule pack, which scrapes the pages, and what it says of itself."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from laggard_cli.errors import CommandError
from laggard_cli.rules import rules_folder
from scale.pages import EXPORTER, EXPORTER_PORT, RANKS

#: As deploy/prometheus/prometheus.yml has them.
INTERVAL, _TIMEOUT = 15, 10
_READY_SECONDS = 60
_ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Reading:
    """What the server has used and done so far."""

    time: float
    processor_seconds: float
    resident_bytes: int
    series: float
    samples: float
    missed: float
    failed: float
    #: The newest evaluation of each group, seconds.
    groups: dict[str, float]


class Server:
    """One that runs."""

    def __init__(self, address: str, process: psutil.Process) -> None:
        self._client = httpx.Client(base_url=f"http://{address}", timeout=_ANSWER_SECONDS)
        self._process = process

    def read(self) -> Reading:
        """Ask it about itself."""
        used = self._process.cpu_times()
        sums: dict[str, float] = {}
        groups: dict[str, float] = {}
        for family in text_string_to_metric_families(self._client.get("/metrics").text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                if sample.name == "prometheus_rule_group_last_duration_seconds":
                    groups[sample.labels["rule_group"]] = sample.value
        return Reading(
            time=time.time(),
            processor_seconds=used.user + used.system,
            resident_bytes=self._process.memory_info().rss,
            series=sums["prometheus_tsdb_head_series"],
            samples=sums["prometheus_tsdb_head_samples_appended_total"],
            missed=sums.get("prometheus_rule_group_iterations_missed_total", 0.0),
            failed=sums.get("prometheus_rule_evaluation_failures_total", 0.0),
            groups=groups,
        )

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire."""
        alerts = self._client.get("/api/v1/alerts").json()["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def value(self, expression: str) -> float:
        """Return the only value of a query's result; not a number where there is none."""
        result = self._client.get("/api/v1/query", params={"query": expression}).json()["data"]["result"]
        return float(result[0]["value"][1]) if result else float("nan")

    def close(self) -> None:
        """End the connections."""
        self._client.close()


@contextmanager
def prometheus(
    program: str, folder: Path, port: int, paths: list[str], *, rules: bool
) -> Generator[Server, None, None]:
    """Run it in a folder, with all pages of a port as its targets, and end it."""
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(_configuration(port, paths, rules=rules)), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "prometheus.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    server = Server(address, psutil.Process(process.pid))
    try:
        _wait(address, process, folder / "prometheus.log")
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(60)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(10 * _READY_SECONDS):
        try:
            if httpx.get(f"http://{address}/-/ready").is_success:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    last = log.read_text(encoding="utf-8").splitlines()[-1:] or ["it said nothing"]
    raise CommandError(f"Prometheus does not start: {last[0]}")


def _configuration(port: int, paths: list[str], *, rules: bool) -> dict[str, object]:
    def job(name: str, end: str) -> dict[str, object]:
        return {
            "job_name": name,
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{port}"],
                    "labels": {"__metrics_path__": path, "instance": f"{path.split('/')[1]}:{EXPORTER_PORT}"},
                }
                for path in paths
                if path.endswith(RANKS) == (end == RANKS)
            ],
        }

    return {
        "global": {
            "scrape_interval": f"{INTERVAL}s",
            "scrape_timeout": f"{_TIMEOUT}s",
            "evaluation_interval": f"{INTERVAL}s",
        },
        "rule_files": [str(rules_folder() / "*.yml")] if rules else [],
        "scrape_configs": [job("laggard-exporter", EXPORTER), job("laggard-ranks", RANKS)],
    }
