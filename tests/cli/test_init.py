"""``laggard init``: a site's files load in the servers that they are for, and do what they say."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard_cli.demo.servers import free_ports
from laggard_cli.main import main
from laggard_cli.rules import render
from laggard_cli.rules.render import rule_files
from laggard_cli.ways import direct
from tests.collector.support import ROOT, missing, processes
from tests.rules.conftest import TOOLS, VERSIONS
from tests.support.receiver import receiving
from tests.support.waiting import until

#: What an alert of the rules says, as Prometheus sends it.
ALERT = {
    "labels": {
        "alertname": "TrainingStalled",
        "severity": "critical",
        "training_kind": "hang",
        "training_run": "<!channel> & co",
        "training_rank": "3",
    },
    "annotations": {
        "summary": "Rank 3 of run <!channel> & co stands still.",
        "recommendation": "Look at its stack.",
        "runbook_url": "https://runbooks.example/TrainingStalled.md",
        "dashboard_url": "https://grafana.example/d/laggard-hang",
    },
}


def init(folder: Path, *arguments: str) -> Path:
    """Write a site and return its folder."""
    assert main(["init", str(folder / "site"), *arguments]) == 0
    return folder / "site"


def load(file: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("profile", ["production", "quick", "fast", "large"])
def test_the_servers_take_it(profile: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each version of promtool, and amtool, find the site of each profile valid, with as many rules as there are."""
    site = init(tmp_path, "--profile", profile, "--cluster", 'east "1"', "--targets", "node-1,node-2:9000")
    said = capfd.readouterr().out.splitlines()
    assert said[0].endswith(f"files in {site}: profile {profile}, node-1:9495, node-2:9000")
    assert said[-1] == f"next: {site / 'README.md'} has what to fill in, and how to start"
    for tool, file in (("promtool", "prometheus.yml"), ("amtool", "alertmanager.yml")):
        state = "is valid" if shutil.which(tool) else None
        assert (f"{tool}: {file} {state}" in said) == (state is not None)
    # The newest is built here, without what discovers targets.
    tools = [TOOLS[version] for version in VERSIONS[:-1] if version in TOOLS]
    for tool in tools if profile == "production" else tools[:1]:
        command = [tool, "check", "config", site / "prometheus.yml"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("rules found") == len(rule_files())
    configured = load(site / "prometheus.yml")
    interval = {"production": "15s", "quick": "5s", "fast": "1s", "large": "15s"}[profile]
    assert configured["global"]["scrape_interval"] == configured["global"]["evaluation_interval"] == interval
    assert configured["global"]["external_labels"] == {"cluster": 'east "1"'}
    assert load(site / "grafana/provisioning/datasources/laggard.yml")["datasources"][0]["jsonData"] == {
        "httpMethod": "POST",
        "timeInterval": interval,
    }
    for job in configured["scrape_configs"]:
        (discovery,) = job["file_sd_configs"]
        assert [load(site / file) for file in discovery["files"]] == [[{"targets": ["node-1:9495", "node-2:9000"]}]]
    links = {"dashboard_url": "http://localhost:3000/d/"}
    assert {path.name: path.read_text() for path in (site / "rules").iterdir()} == render(profile, links=links)


def test_names_and_links_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels have their names in rules, dashboards, inhibitions and messages; alerts lead to the site's pages."""
    names = ["--label", "cluster=k8s_cluster", "--label", "training_run=run_id", "--cluster", "east"]
    site = init(tmp_path, *names, "--grafana", "https://grafana.example/", "--runbook-base", "https://wiki.example/r")
    assert load(site / "prometheus.yml")["global"]["external_labels"] == {"k8s_cluster": "east"}
    texts = {path: path.read_text() for path in site.rglob("*.*") if path.suffix in (".yml", ".json")}
    assert "run_id" in texts[site / "alertmanager.yml"]
    assert "{{ with .CommonLabels.run_id }}run {{ . " in texts[site / "alertmanager.yml"]
    stalled = next(
        rule
        for group in load(site / "rules/alert-process.yml")["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "TrainingStalled"
    )
    assert "run_id" in stalled["expr"]
    assert stalled["annotations"]["runbook_url"] == "https://wiki.example/r/TrainingStalled.md"
    assert stalled["annotations"]["dashboard_url"].startswith("https://grafana.example/d/laggard-")
    # What is written is what the README says to write again.
    (again,) = (line for line in (site / "README.md").read_text().splitlines() if line.startswith("laggard rules"))
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    monkeypatch.chdir(site)
    assert main(again.split()[1:]) == 0
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file that is there already, and nothing is written; what belongs to somebody else does not matter."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "notes").write_text("mine")
    (site / "alertmanager.yml").symlink_to("elsewhere")
    assert main(["init", str(site)]) == 2
    assert capsys.readouterr().err == (
        f"laggard init: error: {site} has alertmanager.yml already, which stays; name another folder, or write rules "
        "and dashboards alone by laggard rules render\n"
    )
    assert sorted(path.name for path in site.iterdir()) == ["alertmanager.yml", "notes"]
    (site / "alertmanager.yml").unlink()
    init(tmp_path)
    assert (site / "notes").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "slow"], "no profile 'slow'; profiles.yaml has production, quick, local, fast, large"),
        (
            ["--targets", "node-1,"],
            "--targets must be HOST or HOST:PORT, separated by commas, got ''; try node-1,node-2:9495",
        ),
        (
            ["--targets", "http://node-1"],
            "--targets must be HOST or HOST:PORT, separated by commas, got 'http://node-1'; try node-1,node-2:9495",
        ),
        (
            ["--targets", "node-1:0"],
            "--targets must be HOST or HOST:PORT, separated by commas, got 'node-1:0'; try node-1,node-2:9495",
        ),
        (["--grafana", "grafana"], "--grafana must be a URL, got 'grafana'; try http://localhost:3000"),
        (["--cluster", "$a"], "--cluster must be without $, which Prometheus replaces, got '$a'"),
        (["--label", "job=x"], "label 'job=x': 'job' cannot be renamed; give OLD=NEW with "),
    ],
)
def test_what_is_refused(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, code 2, and no folder."""
    assert main(["init", str(tmp_path / "site"), *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"laggard init: error: {said}")
    assert errors.count("\n") == 1
    assert not (tmp_path / "site").exists()


def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the way is named."""
    (tmp_path / "site").write_text("")
    assert main(["init", str(tmp_path / "site")]) == 2
    assert f"laggard init: error: {tmp_path / 'site'}" in capsys.readouterr().err


def test_it_is_the_compose_file_of_the_checkout(tmp_path: Path) -> None:
    """The same images, flags and addresses; what it mounts is there; the exporter is each node's own."""
    site = init(tmp_path)
    here, there = load(site / "compose.yaml"), load(ROOT / "deploy" / "compose" / "compose.yaml")
    assert set(there["services"]) - set(here["services"]) == {"exporter"}
    for name, service in here["services"].items():
        other = there["services"][name]
        for part in ("image", "network_mode", "environment", "restart"):
            assert service.get(part) == other.get(part)
        assert [flag for flag in service.get("command", []) if "config.file" not in flag] == [
            flag for flag in other.get("command", []) if "config.file" not in flag
        ]
        for flag in service.get("command", []):
            if flag.startswith("--config.file=/etc/laggard/"):
                assert (site / flag.removeprefix("--config.file=/etc/laggard/")).is_file()
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (site / source).is_dir() if source.startswith(".") else source in here["volumes"]
    grafana = {mount.split(":")[1]: site / mount.split(":")[0] for mount in here["services"]["grafana"]["volumes"]}
    (provider,) = load(site / "grafana/provisioning/dashboards/laggard.yml")["providers"]
    assert len(list(grafana[provider["options"]["path"]].glob("*.json"))) == 10
    assert here["services"]["alertmanager"]["working_dir"] == "/etc/laggard"


def _alertmanager(address: str) -> list[str | Path]:
    if shutil.which("prometheus-alertmanager") is None:
        missing("prometheus-alertmanager is missing: scripts/tools/fetch_servers.sh")
    return [
        "prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=alertmanager-data",
        f"--web.listen-address={address}", "--cluster.listen-address=",
    ]  # fmt: skip


def test_slack_and_pagerduty_get_what_an_alert_says(tmp_path: Path) -> None:
    """A real Alertmanager, started in the folder with the two secrets filled in, sends what a person can act on.

    What a run is called is text in Slack, and no command. An alert that is over comes last, without its last figures.
    Of many alerts ten are shown, and how many there are.
    """
    site = init(tmp_path)
    port = free_ports(1)[0]
    configuration = site / "alertmanager.yml"
    # By its name it is the first of the two.
    over = {
        "labels": {**ALERT["labels"], "alertname": "TrainingRankMissing", "host_name": "<node>"},
        "annotations": {**ALERT["annotations"], "summary": "The run works on without 1.00 rank."},
    }
    many = [
        {**ALERT, "labels": {**ALERT["labels"], "training_run": "many", "training_rank": str(rank)}}
        for rank in range(12)
    ]
    with receiving() as (url, messages), processes(tmp_path) as started:
        (site / "secrets" / "slack-url").write_text(f"{url}/slack")
        (site / "secrets" / "pagerduty-key").write_text("key")
        text = configuration.read_text().replace("group_wait: 15s", "group_wait: 1s")
        # PagerDuty's own address is the default.
        configuration.write_text(
            text.replace("- routing_key_file", f"- url: {url}/pagerduty\n        routing_key_file")
        )
        started.start("alertmanager", _alertmanager(f"127.0.0.1:{port}"), at=site)
        base = f"http://127.0.0.1:{port}"
        started.wait("alertmanager", f"{base}/-/ready")
        ends = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=0.5)
        alerts = [ALERT, {**over, "endsAt": ends.isoformat()}, *many]
        direct().post(f"{base}/api/v2/alerts", json=alerts).raise_for_status()
        both = ("/slack", "/pagerduty")
        until(lambda: all(len(messages.get(path, [])) == 2 for path in both), "both are told of both runs")
    few, all_of_many = sorted(messages["/slack"], key=lambda message: "run many" in message["attachments"][0]["title"])
    text = all_of_many["attachments"][0]["text"].strip()
    assert (text.count("(firing)"), text.splitlines()[-1]) == (10, "12 alerts fire, 0 are resolved.")
    (attachment,) = few["attachments"]
    assert few["channel"] == "#training"
    assert attachment["title"] == "FIRING: run &lt;!channel&gt; &amp; co"
    assert attachment["title_link"] == "https://grafana.example/d/laggard-hang"
    assert attachment["text"].strip() == (
        "*TrainingStalled* (firing): Rank 3 of run &lt;!channel&gt; &amp; co stands still.\n"
        "Look at its stack.\n"
        "<https://runbooks.example/TrainingStalled.md|Runbook>\n"
        "*TrainingRankMissing* (resolved): rank 3 on &lt;node&gt;"
    )
    page = min(messages["/pagerduty"], key=lambda message: len(str(message)))
    assert (page["routing_key"], page["payload"]["summary"]) == ("key", ALERT["annotations"]["summary"])
    assert page["payload"]["severity"] == "critical"
    assert page["links"] == [
        {"href": "https://runbooks.example/TrainingStalled.md", "text": "Runbook"},
        {"href": "https://grafana.example/d/laggard-hang", "text": "Dashboard"},
    ]


def test_the_servers_start(tmp_path: Path) -> None:
    """A real Prometheus evaluates the rules and scrapes a real exporter twice; Alertmanager hears the watchdog."""
    if shutil.which("prometheus") is None:
        missing("prometheus is missing: scripts/tools/fetch_servers.sh")
    exporter, server, alerts = free_ports(3)
    site = init(tmp_path, "--profile", "fast", "--targets", f"127.0.0.1:{exporter}")
    configuration = site / "prometheus.yml"
    configuration.write_text(configuration.read_text().replace("localhost:9093", f"127.0.0.1:{alerts}"))
    base = f"http://127.0.0.1:{server}"

    def get(path: str) -> Any:
        return direct().get(f"{base}/api/v1/{path}").json()["data"]

    with processes(tmp_path) as started:
        state = tmp_path / "state"
        started.start(
            "exporter",
            ["laggard-exporter", f"--web.listen-address=127.0.0.1:{exporter}", f"--state.directory={state}"],
        )
        started.start("alertmanager", _alertmanager(f"127.0.0.1:{alerts}"), at=site)
        # What is sent before the Alertmanager is known is lost, and sent again.
        more = [f"--web.listen-address=127.0.0.1:{server}", "--rules.alert.resend-delay=1s"]
        started.start(
            "prometheus",
            ["prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={tmp_path / 'data'}", *more],
            at=site,
        )
        started.wait("prometheus", f"{base}/-/ready")
        started.wait("alertmanager", f"http://127.0.0.1:{alerts}/-/ready")
        until(lambda: len(get("query?query=up==1")["result"]) == 2, "both jobs are up")
        until(
            lambda: [
                alert["labels"]["alertname"]
                for alert in direct().get(f"http://127.0.0.1:{alerts}/api/v2/alerts").json()
            ] == ["LaggardWatchdog"],
            "the watchdog arrives",
        )  # fmt: skip
        groups = get("rules")["groups"]
    assert {Path(group["file"]).name for group in groups} == set(rule_files())
    # Not all have been evaluated by then, and none has failed.
    assert {"ok"} <= {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
