"""Two clusters with runs of one name, each with a pair of servers, under one Thanos query and one Alertmanager."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.scale.thanos import THANOS
from laggard_cli.demo.servers import free_ports
from laggard_cli.main import main
from tests.collector.support import ROOT, Processes, alertmanager, missing, processes
from tests.deploy.thanos import write_rules
from tests.rules.engine import RUN, Play, serving
from tests.support.receiver import receiving
from tests.support.waiting import until

SECONDS = 120
#: Server to its cluster, and to the replica that it is in it.
SERVERS = {f"{cluster}-{replica}": (cluster, replica) for cluster in ("east", "west") for replica in ("0", "1")}
#: Whoever is slow in each cluster.
SLOW = {"east": 2, "west": 1}


@dataclass
class Pager:
    """Takes what Alertmanager sends."""

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def told(self) -> list[tuple[str, str, list[tuple[str, str]]]]:
        """Return cluster and run of each message, and its alerts with their ranks."""
        return sorted(
            (
                each["groupLabels"].get("cluster", ""),
                each["groupLabels"].get("training_run", ""),
                sorted((alert["labels"]["alertname"], alert["labels"]["training_rank"]) for alert in each["alerts"]),
            )
            for each in self.messages
        )


@contextlib.contextmanager
def pager() -> Iterator[tuple[str, Pager]]:
    """Yield where a pager listens, and the pager."""
    with receiving() as (url, found):
        yield f"{url}/", Pager(found.setdefault("/", []))


@dataclass
class Site:
    """Everything that runs."""

    #: Thanos query with the label of replicas, and without.
    query: str
    plain: str
    pager: Pager


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A run of one name in each cluster, each with another slow rank."""
    if shutil.which("prometheus") is None:
        missing("prometheus is missing: scripts/tools/fetch_servers.sh")
    if not THANOS.exists():
        missing("no Thanos: run scripts/tools/build_thanos.sh, which needs Go")
    folder = tmp_path_factory.mktemp("clusters")
    ports = iter(free_ports(3 * len(SERVERS) + 5))
    write_rules(folder / "rules")
    with contextlib.ExitStack() as after:
        started = after.enter_context(processes(folder))
        url, pages = after.enter_context(pager())
        told = f"127.0.0.1:{next(ports)}"
        started.start("alertmanager", _paged(alertmanager(folder, told), folder, url))
        targets: dict[str, str] = {}
        for cluster, slow in SLOW.items():
            play = Play()
            play.data[slow] += 0.05
            targets[cluster] = after.enter_context(serving(play))
        sidecars = [_server(started, name, targets[cluster], told, ports) for name, (cluster, _) in SERVERS.items()]
        replicas = ["--query.replica-label=prometheus_replica"]
        query = _query(started, "query", sidecars, replicas, ports)
        yield Site(query, _query(started, "plain", sidecars, [], ports), pages)


def _paged(command: list[str | Path], folder: Path, url: str) -> list[str | Path]:
    """Let Alertmanager tell a pager, at once."""
    file = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["route"]["group_wait"] = "3s"
    for receiver in content["receivers"]:
        if receiver["name"] in ("default", "page"):
            receiver["webhook_configs"] = [{"url": url}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return [str(each).replace(str(file), str(folder / "alertmanager.yml")) for each in command]


def _server(started: Processes, name: str, target: str, told: str, ports: Iterator[int]) -> str:
    """Start a Prometheus and its sidecar; return the address at which Thanos asks it."""
    cluster, replica = SERVERS[name]
    web, grpc, health = (f"127.0.0.1:{next(ports)}" for _ in range(3))
    folder = started.folder / name
    configuration = {
        "global": {
            "scrape_interval": "1s",
            "evaluation_interval": "2s",
            "external_labels": {"cluster": cluster, "prometheus_replica": replica},
        },
        "rule_files": [f"{started.folder}/rules/*.yml"],
        "scrape_configs": [{"job_name": "ranks", "static_configs": [{"targets": [target]}]}],
        "alerting": {
            # Of a pair both tell the same.
            "alert_relabel_configs": [{"action": "labeldrop", "regex": "prometheus_replica"}],
            "alertmanagers": [{"static_configs": [{"targets": [told]}]}],
        },
    }
    file = started.folder / f"{name}.yml"
    file.write_text(json.dumps(configuration), encoding="utf-8")
    flags = [f"--config.file={file}", f"--storage.tsdb.path={folder}", f"--web.listen-address={web}"]
    started.start(name, ["prometheus", *flags])
    started.wait(name, f"http://{web}/-/ready")
    flags = [f"--tsdb.path={folder}", f"--prometheus.url=http://{web}"]
    flags += [f"--grpc-address={grpc}", f"--http-address={health}"]
    started.start(f"{name}-sidecar", [THANOS, "sidecar", *flags])
    return grpc


def _query(started: Processes, name: str, sidecars: list[str], more: list[str], ports: Iterator[int]) -> str:
    """Start a Thanos query; return its URL."""
    web, grpc = (f"127.0.0.1:{next(ports)}" for _ in range(2))
    endpoints = [f"--endpoint={each}" for each in sidecars]
    flags = [*endpoints, *more, f"--http-address={web}", f"--grpc-address={grpc}"]
    started.start(name, [THANOS, "query", *flags])
    started.wait(name, f"http://{web}/-/ready")
    return f"http://{web}"


def diagnosed(
    capsys: pytest.CaptureFixture[str], address: str, *arguments: str
) -> list[tuple[str, str, list[tuple[str, str]], int]]:
    """Return cluster and name of each run, its verdicts with their ranks, and how many ranks are compared."""
    if main(["diagnose", "--prometheus", address, "--json", *arguments]) != 0:
        return [("", capsys.readouterr().err, [], 0)]
    runs = json.loads(capsys.readouterr().out)["runs"]
    return [
        (run["cluster"], run["run"], [(each["alert"], each["rank"]) for each in run["verdicts"]], len(run["ranks"]))
        for run in runs
    ]


def test_each_cluster_has_its_verdict(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run has its own culprit: now, in the past and in a report. A pair is as one server, each run one message."""
    expected = [(cluster, RUN, [("TrainingStraggler", str(rank))], 4) for cluster, rank in SLOW.items()]
    until(lambda: diagnosed(capsys, site.query) == expected, "not one straggler in each cluster", SECONDS)
    assert diagnosed(capsys, site.query, "--run", RUN, "--cluster", "west") == expected[1:]
    until(lambda: diagnosed(capsys, site.plain) == expected, "a pair is not told as one", SECONDS)

    for address in (site.query, site.plain):
        until(
            lambda: diagnosed(capsys, address, "--at", str(time.time() - 2)) == expected,  # noqa: B023 - called at once
            "not in the past",
        )

    report = ["report", "--run", RUN, "-o", str(tmp_path / "report.html")]
    assert main([*report, "--prometheus", site.query]) == 2
    assert capsys.readouterr().err == (
        f"laggard report: error: run '{RUN}' is in several clusters: 'east', 'west'; give --cluster\n"
    )
    for cluster, rank in SLOW.items():
        for address in (site.query, site.plain):
            assert main([*report, "--prometheus", address, "--cluster", cluster]) == 0
            headline, rest = capsys.readouterr().out.splitlines()
            # Where each series is there twice, the rule's own arithmetic has no answer.
            said = rf"of run {RUN} on node-1 takes \S+ times as long as its peers, mostly in data, and they wait for it"
            if address == site.plain:
                said = "on node-1, phase data: one rank is slow in every step, and the others wait for it"
            assert re.match(rf"Rank {rank} {said} \(since ", headline), headline
            # One alone, also of a pair. What a busy machine does to the servers may be told too.
            page = (tmp_path / "report.html").read_text(encoding="utf-8")
            alerts = re.findall(r'<p class="tag \w+">\w+: (\w+)</p>', page)
            assert alerts.count("TrainingStraggler") == 1, (alerts, rest)

    told = [(cluster, RUN, [("TrainingStraggler", str(rank))]) for cluster, rank in SLOW.items()]
    until(lambda: len(site.pager.messages) >= len(told), "Alertmanager does not tell of both", SECONDS)
    assert site.pager.told() == told
