"""Thanos with the rule pack, as docs/deploy.md starts it, beside a plain Prometheus that sees the same ranks."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from laggard_cli.demo.servers import free_ports
from laggard_cli.errors import CommandError
from laggard_cli.main import main
from laggard_cli.prometheus import Prometheus
from laggard_cli.ways import direct
from tests.collector.pusher import Pusher, lost, stored
from tests.collector.support import agent, alertmanager, gateway, missing, named, processes
from tests.deploy.thanos import Thanos
from tests.rules.engine import RUN, Play, serving
from tests.support.waiting import until

#: So long may what takes half a minute take on a busy machine.
SECONDS = 120
STRAGGLER = {
    "alertname": "TrainingStraggler",
    "severity": "warning",
    "training_kind": "speed",
    "training_run": RUN,
    "training_rank": "2",
    "training_phase": "data",
    "host_name": "node-1",
}


@dataclass
class Site:
    """Everything that runs."""

    thanos: Thanos
    query: Prometheus
    #: Another querier, with none of our flags.
    usual: Prometheus
    plain: Prometheus
    #: Where an agent takes what ranks push.
    otlp: int

    def failed(self) -> float:
        """Return how many evaluations of a rule have failed."""
        return self.thanos.metric("rule", "prometheus_rule_evaluation_failures_total")

    def evaluates(self) -> bool:
        """Say whether for four seconds no evaluation fails and none is left out."""
        names = ("evaluations_total", "evaluation_failures_total", "group_iterations_missed_total")
        before = [self.thanos.metric("rule", f"prometheus_rule_{name}") for name in names]
        time.sleep(4)
        now = [self.thanos.metric("rule", f"prometheus_rule_{name}") for name in names]
        done, *wrong = (new - old for new, old in zip(now, before, strict=True))
        return done > 200 and not any(wrong)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A run that both watch: Prometheus by a scrape, Thanos through agent and gateway. Rank 2 is slow in data."""
    if shutil.which("prometheus") is None:
        missing("prometheus is missing: scripts/tools/fetch_servers.sh")
    folder = tmp_path_factory.mktemp("thanos")
    play = Play()
    with contextlib.ExitStack() as after:
        started = after.enter_context(processes(folder))
        thanos = Thanos(folder, started)
        thanos.start("receive-0", "receive-1", "rule", "query")
        target = after.enter_context(serving(play))
        ports = free_ports(7)
        ours, theirs = named(ports[:4], "grpc", "http", "health", "self"), named(ports[4:], "grpc", "health", "self")
        write = f"{thanos.url('receive-0', 19291)}/api/v1/receive"
        started.start("gateway", *gateway(folder, theirs, write, "http://127.0.0.1:1"))
        started.wait("gateway", f"http://127.0.0.1:{theirs['health']}/")
        started.start("agent", *agent(folder, {**ours, "exporter": int(target.rpartition(":")[2])}, [theirs["grpc"]]))
        address = thanos.url("alertmanager", 9093).removeprefix("http://")
        started.start("alertmanager", alertmanager(folder, address))
        plain = thanos.url("plain", 9090)
        configuration = {
            "global": {"scrape_interval": "1s"},
            "rule_files": [f"{thanos.rules}/*.yml"],
            "scrape_configs": [{"job_name": "ranks", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "plain.yml").write_text(json.dumps(configuration))
        flags = [f"--config.file={folder / 'plain.yml'}", f"--storage.tsdb.path={folder / 'plain'}"]
        started.start("plain", ["prometheus", *flags, f"--web.listen-address={plain.removeprefix('http://')}"])
        started.wait("plain", f"{plain}/-/ready")
        thanos.start_usual_query()
        clients = [Prometheus(address) for address in (thanos.url("query"), thanos.url("usual"), plain)]
        for each in clients:
            after.callback(each.close)
        until(lambda: healthy_stores(thanos) == 3, "Thanos query does not find all")
        play.data[2] += 0.05
        query, usual, prometheus = clients
        yield Site(thanos, query, usual, prometheus, ours["http"])


def healthy_stores(thanos: Thanos) -> int:
    """Return how many of those that it asks Thanos query has reached."""
    stores = direct().get(f"{thanos.url('query')}/api/v1/stores").json()["data"]
    return sum(each["lastError"] is None for kind in stores.values() for each in kind)


def answers(server: Prometheus) -> bool:
    """Say whether a query is answered."""
    try:
        return bool(server.query("laggard_rules_info"))
    except CommandError:
        return False


def firing(server: Prometheus) -> list[dict[str, str]]:
    """Return the labels of the verdicts that stand."""
    fire = [alert["labels"] for alert in server.alerts() if alert["state"] == "firing"]
    return [labels for labels in fire if labels["alertname"].startswith("Training")]


def since(server: Prometheus) -> str:
    """Return since when the slow rank is told of."""
    (found,) = (alert["activeAt"] for alert in server.alerts() if alert["labels"] == STRAGGLER)
    return found


def recorded(server: Prometheus) -> set[frozenset[tuple[str, str]]]:
    """Return the labels, name included, of what the rules record, and of the alerts' series."""
    return {frozenset(sample.labels.items()) for sample in server.query('{__name__=~".+:.+|ALERTS"}')}


def measured(server: Prometheus) -> set[frozenset[tuple[str, str]]]:
    """Return the labels, name included, of what ranks measure."""
    return {frozenset(sample.labels.items()) for sample in server.query('{__name__=~"training_.+"}')}


def complaint(server: Prometheus, whole: set[frozenset[tuple[str, str]]]) -> str:
    """Return what a server says in place of an answer, or nothing. An answer is all that was there."""
    try:
        assert measured(server) == whole
    except CommandError as error:
        return str(error)
    return ""


def refused(whole: set[frozenset[tuple[str, str]]], *servers: Prometheus) -> dict[str, str]:
    """Ask servers until each answers, and return what they say before that, by their names."""
    said: dict[str, str] = {}

    def all_answer() -> bool:
        now = {server.name: complaint(server, whole) for server in servers}
        said.update({name: text for name, text in now.items() if text})
        return not any(now.values())

    end = time.monotonic() + SECONDS
    # Without the pauses of other waits: what is said for a second or two is to be heard.
    while not all_answer():
        assert time.monotonic() < end, "Thanos query does not leave out who is dead"
    return said


def diagnosis(address: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what ``laggard diagnose`` says of the run."""
    assert main(["diagnose", "--prometheus", address, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return run


def refusal(address: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that ``laggard diagnose`` says in place of a verdict."""
    assert main(["diagnose", "--prometheus", address]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line.removeprefix("laggard diagnose: error: ")


def test_same_verdict_as_prometheus(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The same alert, the same recorded series, label for label, in diagnose and Alertmanager; nothing is missed."""
    until(lambda: firing(site.plain) == firing(site.query) == [STRAGGLER], "no straggler", SECONDS)
    until(site.evaluates, "rules fail, or are not evaluated in time")
    until(lambda: recorded(site.plain) == recorded(site.query), "not the same series are recorded", SECONDS)
    assert len(recorded(site.query)) > 100

    ours, theirs = (diagnosis(each.name, capsys) for each in (site.plain, site.query))
    told = ("alert", "severity", "run", "rank", "phase", "host", "summary", "recommendation", "runbook_url")
    (verdict,), (same) = ours["verdicts"], theirs["verdicts"]
    assert [{name: each[name] for name in told} for each in same] == [{name: verdict[name] for name in told}]
    assert theirs["facts"].keys() == ours["facts"].keys()
    assert theirs["ranks"][0]["rank"] == ours["ranks"][0]["rank"] == "2"
    assert theirs["ranks"][0]["own_seconds"] == pytest.approx(0.15, rel=0.05)

    sent = f"{site.thanos.url('alertmanager', 9093)}/api/v2/alerts"
    until(lambda: STRAGGLER in [alert["labels"] for alert in direct().get(sent).json()], "no alert is sent")


def test_a_member_that_is_killed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Each member is killed under load: no sample is lost, and the verdict stands while the second one is away.

    Until Thanos query leaves it out, an answer is an error and not a part of it, even where Thanos would give a part.
    """
    thanos = site.thanos
    until(lambda: firing(site.query) == [STRAGGLER] and healthy_stores(thanos) == 3, "no straggler")
    begun = since(site.query)
    pusher = Pusher(site.otlp)
    until(lambda: stored(site.query.name), "nothing arrives")

    before = measured(site.query)
    assert len(before) > 50
    with thanos.away("receive-1"):
        refusals = refused(before, site.query, site.usual)
        assert {name: line.partition("/query: ")[0] for name, line in refusals.items()} == {
            name: f"Prometheus at {name} refuses /api/v1" for name in (site.query.name, site.usual.name)
        }
        failed = site.failed()
        # The other one has all of it, and not the half.
        assert diagnosis(site.query.name, capsys)["verdicts"][0]["since"] == begun
    until(lambda: healthy_stores(thanos) == 3, "Thanos query does not take the member back")
    assert (firing(site.query), since(site.query), site.failed()) == ([STRAGGLER], begun, failed)

    # Agents keep what comes while nobody takes it.
    with thanos.away("receive-0"):
        time.sleep(1)
    time.sleep(1)
    pusher.end()
    assert len(pusher.accepted) > 40
    until(lambda: answers(site.query), "Thanos query does not answer")
    newest = max(pusher.accepted.values())
    until(lambda: max(stored(site.query.name).values(), default=0) == newest, "the newest does not arrive")
    until(lambda: pusher.accepted.items() <= stored(site.query.name).items(), lost(pusher, site.query.name))


def test_what_is_away_is_no_health(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the ruler, and without Thanos query, diagnose says in one line that it cannot know."""
    ours = site.thanos.url("query")
    until(lambda: healthy_stores(site.thanos) == 3, "Thanos query does not find all")
    with site.thanos.away("rule"):
        assert refusal(ours, capsys).startswith(f"Prometheus at {ours} refuses /api/v1/query: ")
        until(lambda: healthy_stores(site.thanos) == 2, "Thanos query does not see that the ruler is away")
        # For as long as it is away, not only until that is seen.
        assert refusal(ours, capsys).startswith(f"Prometheus at {ours} refuses /api/v1/query: ")
    with site.thanos.away("query"):
        assert refusal(ours, capsys) == f"Prometheus at {ours} cannot be reached: Connection refused"
