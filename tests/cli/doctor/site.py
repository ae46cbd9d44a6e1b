"""A node with ranks, a Prometheus that scrapes it, and what ``laggard doctor`` says of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from laggard_cli.demo.servers import free_ports
from laggard_cli.main import main
from laggard_cli.ways import direct
from tests.collector.support import Processes

#: A rank whose steps are marked by hand; its argument says by how many seconds its clock is wrong.
RANK = """
import sys, time
skew = float(sys.argv[1])
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + skew
time.time_ns = lambda: real_ns() + int(skew * 1e9)
import laggard
laggard.instrument()
while True:
    with laggard.step(), laggard.phase("data"):
        time.sleep(0.05)
"""
RUN = "llama"
#: Each rank that both sides show.
SEEN = "training_steps_total and on (training_run, training_rank) training_process_last_step_age_seconds"


@dataclass
class Node:
    """A node exporter with ranks of its own."""

    exporter: int
    ranks: Sequence[int]


def node(started: Processes, name: str, skews: Sequence[float]) -> Node:
    """Start a node exporter, and a rank for each deviation of its clock."""
    exporter, *ports = free_ports(1 + len(skews))
    state = str(started.folder / name)
    listen = f"--web.listen-address=127.0.0.1:{exporter}"
    started.start(f"{name}-exporter", ["laggard-exporter", listen, f"--state.directory={state}", "--host.name=node-1"])
    for rank, skew in enumerate(skews):
        environment = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(skews)), "LAGGARD_RUN": RUN,
            "LAGGARD_STATE_DIR": state, "LAGGARD_HOST": "node-1", "LAGGARD_WARMUP_STEPS": "0",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(ports[0]),
        }  # fmt: skip
        started.start(f"{name}-rank{rank}", [sys.executable, "-c", RANK, str(skew)], environment)
    return Node(exporter, ports)


def prometheus(started: Processes, name: str, configuration: dict[str, Any], texts: dict[str, str]) -> str:
    """Start a Prometheus; return its address."""
    (port,) = free_ports(1)
    folder = started.folder / name
    (folder / "rules").mkdir(parents=True)
    for file, text in texts.items():
        (folder / "rules" / file).write_text(text)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    more = [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    started.start(name, ["prometheus", "--config.file=prometheus.yml", *more], at=folder)
    started.wait(name, f"http://127.0.0.1:{port}/-/ready")
    return f"http://127.0.0.1:{port}"


def job(name: str, *ports: int | str, **more: Any) -> dict[str, Any]:
    """Return a scrape job of ports on loopback, or of other addresses."""
    addresses = [port if isinstance(port, str) else f"127.0.0.1:{port}" for port in ports]
    labels = more.pop("labels", {})
    return {"job_name": name, "static_configs": [{"targets": addresses, "labels": labels}], **more}


def series(address: str, query: str) -> int:
    """Return how many series a query gives."""
    answer = direct().get(f"{address}/api/v1/query", params={"query": query}).json()
    return len(answer["data"]["result"])


def pid_of(address: str, rank: int) -> int:
    """Return the process of a rank."""
    query = {"query": f'training_process_info{{training_rank="{rank}"}}'}
    (found,) = direct().get(f"{address}/api/v1/query", params=query).json()["data"]["result"]
    return int(found["metric"]["process_pid"])


def doctor(address: str, *arguments: str, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command prints."""
    capsys.readouterr()
    assert main(["doctor", "--prometheus", address, *arguments]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def faults(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return status, detail and remedy of the findings by their checks."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for each in json.loads(text)["findings"]:
        found.setdefault(each["check"], []).append((each["status"], each["detail"], each["do"]))
    return found
