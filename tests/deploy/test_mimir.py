"""The limits of a tenant of Mimir suffice for the rule pack, and a real Mimir says what a Prometheus would say."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard.shared import metrics, process_metrics
from laggard.shared.attributes import IDENTITY
from laggard_cli.demo.servers import free_ports
from laggard_cli.main import main
from laggard_cli.rules import render
from laggard_cli.ways import direct
from tests.collector.support import Processes, agent, gateway, named, processes
from tests.deploy.mimir import OVERRIDES, TENANT, Mimir, mimirtool
from tests.rules.engine import RUN, Play, serving
from tests.support.waiting import until

#: Whoever is slow in each cluster.
SLOW = {"east": 2, "west": 1}
#: Of a rank with every signal in use; tests/instrumentation/test_series.py counts them.
SERIES_PER_RANK = 200
INTERVAL = 15
#: What Prometheus and the paths add to the labels of a series: its name, job, instance.
ADDED = 3


def test_limits_suffice() -> None:
    """Groups, rules and labels of the pack, series and samples of the ranks: none is above its limit."""
    text = OVERRIDES.read_text(encoding="utf-8")
    limits: dict[str, Any] = yaml.safe_load(text)["overrides"][TENANT]
    groups = [group for each in render(form="mimir").values() for group in yaml.safe_load(each)["groups"]]
    assert len(groups) <= limits["ruler_max_rule_groups_per_tenant"]
    assert max(len(group["rules"]) for group in groups) <= limits["ruler_max_rules_per_rule_group"]

    labels = max(
        (len({*IDENTITY, *metric.attributes}) + ADDED, metric.name)
        for metric in (*metrics.TRAINING_METRICS, *process_metrics.PROCESS_METRICS)
    )
    assert labels[0] <= limits["max_label_names_per_series"]
    assert labels[1] == "training.run.info"

    ranks = int(re.findall(r"^# For ([\d,]+) ranks", text, re.MULTILINE)[0].replace(",", ""))
    # Twice the ranks' own: as many again by restarts, node exporters and rules.
    assert ranks * SERIES_PER_RANK * 2 <= limits["max_global_series_per_user"]
    assert ranks * SERIES_PER_RANK * 2 / INTERVAL <= limits["ingestion_rate"] <= limits["ingestion_burst_size"]
    # As in Prometheus and in Thanos.
    assert limits["out_of_order_time_window"] == "10m"


def test_a_real_mimir_names_the_slow_rank_of_each_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the commands of docs/deploy.md: rules loaded by its tool, samples from gateways, the verdicts by diagnose.

    Two clusters have a run of one name, each with another slow rank. Nothing is refused, no rule fails, and what
    another tenant asks for is not there.
    """
    plays = {cluster: Play() for cluster in SLOW}
    with processes(tmp_path) as started, contextlib.ExitStack() as after:
        targets = {cluster: after.enter_context(serving(play)) for cluster, play in plays.items()}
        mimir = Mimir(tmp_path, started)
        mimir.start()
        # Names such as laggard_threshold are no level:metric:operation, which is what `check` asks for; `lint` parses.
        assert (
            main(["rules", "render", "--format", "mimir", "--profile", "fast", "--output", str(tmp_path / "rules")])
            == 0
        )
        files = sorted((tmp_path / "rules").glob("*.yml"))
        assert "msg=SUCCESS" in mimirtool("rules", "lint", "--dry-run", *files)
        mimirtool("rules", "load", f"--address={mimir.url}", f"--id={TENANT}", *files)

        for cluster, target in targets.items():
            _collect(started, cluster, int(target.rpartition(":")[2]), f"{mimir.url}/api/v1/push")

        def asked(tenant: str, path: str, **parameters: str) -> Any:
            answer = direct().get(
                f"{mimir.url}/prometheus/api/v1/{path}", params=parameters, headers={"X-Scope-OrgID": tenant}
            )
            return answer.raise_for_status().json()["data"]

        def verdicts() -> list[dict[str, str]]:
            alerts = [alert["labels"] for alert in asked(TENANT, "alerts")["alerts"] if alert["state"] == "firing"]
            return [labels for labels in alerts if labels["alertname"].startswith("Training")]

        live = "run:training_ranks_live:count"
        until(lambda: len(asked(TENANT, "query", query=live)["result"]) == len(SLOW), "no rule, no run", 120)
        for cluster, rank in SLOW.items():
            plays[cluster].data[rank] += 0.05
        until(lambda: len(verdicts()) == len(SLOW), "no straggler in each cluster", 120)
        names = ("alertname", "cluster", "training_run", "training_rank", "training_phase")
        assert sorted(tuple(found[name] for name in names) for found in verdicts()) == [
            ("TrainingStraggler", cluster, RUN, str(rank), "data") for cluster, rank in SLOW.items()
        ]
        rules = [rule for group in asked(TENANT, "rules")["groups"] for rule in group["rules"]]
        assert len(rules) == sum(
            len(group["rules"]) for file in files for group in yaml.safe_load(file.read_text())["groups"]
        )
        assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] == "err"] == []
        assert asked("somebody", "query", query="training_steps_total")["result"] == []
        discarded = [
            line for line in direct().get(f"{mimir.url}/metrics").text.splitlines()
            if line.startswith("cortex_discarded_samples_total") and not line.endswith(" 0")
        ]  # fmt: skip
        assert discarded == []

        (tmp_path / "http.yml").write_text(f"http_headers: {{X-Scope-OrgID: {{values: [{TENANT}]}}}}\n")
        command = [
            "diagnose",
            "--prometheus",
            f"{mimir.url}/prometheus",
            "--http.config.file",
            str(tmp_path / "http.yml"),
        ]
        capsys.readouterr()
        assert main([*command, "--json"]) == 0
        runs = json.loads(capsys.readouterr().out)["runs"]
        assert [
            (run["cluster"], each["alert"], each["rank"], each["phase"]) for run in runs for each in run["verdicts"]
        ] == [(cluster, "TrainingStraggler", str(rank), "data") for cluster, rank in SLOW.items()]


def _collect(started: Processes, cluster: str, exporter: int, push: str) -> None:
    """Start a cluster's agent and its gateway, which sets the label."""
    folder = started.folder / cluster
    folder.mkdir()
    ports = free_ports(7)
    ours, theirs = named(ports[:4], "grpc", "http", "health", "self"), named(ports[4:], "grpc", "health", "self")
    command, environment = gateway(folder, theirs, push, "http://127.0.0.1:1")
    label = ["--set", f"exporters.prometheus_remote_write.external_labels.cluster={cluster}"]
    headers = {"METRICS_HEADERS": f"{{X-Scope-OrgID: {TENANT}}}"}
    started.start(f"gateway-{cluster}", [*command, *label], {**environment, **headers})
    started.wait(f"gateway-{cluster}", f"http://127.0.0.1:{theirs['health']}/")
    started.start(f"agent-{cluster}", *agent(folder, {**ours, "exporter": exporter}, [theirs["grpc"]]))
