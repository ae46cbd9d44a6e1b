"""``laggard doctor`` against a real Prometheus: nothing is wrong where nothing is, and each fault has its line."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
import yaml
from promql_parser import parse_duration

from laggard.version import PACK_VERSION
from laggard_cli.demo.servers import free_ports
from laggard_cli.doctor import rules, targets
from laggard_cli.doctor.findings import Finding
from laggard_cli.doctor.rules import _shipped
from laggard_cli.doctor.server import Group, Rule, Target
from laggard_cli.main import main
from laggard_cli.pack import pack_folder
from laggard_cli.rules import render
from laggard_cli.rules.formats import merged
from laggard_cli.rules.profiles import load_profile
from laggard_cli.rules.render import render_pack
from tests.collector.support import Processes, missing, processes, wait_until
from tests.support.fake_prometheus import fake_prometheus, firing

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
    answer = httpx.get(f"{address}/api/v1/query", params={"query": query}).json()
    return len(answer["data"]["result"])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """What the servers and ranks run in."""
    if shutil.which("prometheus") is None:
        missing("prometheus is missing: scripts/tools/fetch_servers.sh")
    with processes(tmp_path_factory.mktemp("doctor")) as found:
        yield found


@pytest.fixture(scope="module")
def healthy(started: Processes) -> str:
    """A server as ``laggard init`` configures it, with an Alertmanager that it knows, and two ranks."""
    found = node(started, "well", (0, 0))
    alerts, server = free_ports(2)
    site = started.folder / "site"
    assert main(["init", str(site), "--profile", "fast", "--targets", f"127.0.0.1:{found.exporter}"]) == 0
    configuration = site / "prometheus.yml"
    configuration.write_text(configuration.read_text().replace("localhost:9093", f"127.0.0.1:{alerts}"))
    for file in (site / "rules").iterdir():
        file.write_text(file.read_text().replace("interval: 30s", "interval: 3s"))
    more = [f"--storage.tsdb.path={site / 'data'}", f"--web.listen-address=127.0.0.1:{server}"]
    started.start("healthy", ["prometheus", "--config.file=prometheus.yml", *more], at=site)
    address = f"http://127.0.0.1:{server}"
    started.wait("healthy", f"{address}/-/ready")
    wait_until(lambda: series(address, SEEN) == 2, "ranks arrive")
    wait_until(lambda: not _groups(address, evaluated=False), "every group is evaluated")
    return address


def _groups(address: str, *, evaluated: bool) -> list[str]:
    found = httpx.get(f"{address}/api/v1/rules").json()["data"]["groups"]
    return [each["name"] for each in found if each["lastEvaluation"].startswith("0001") != evaluated]


def doctor(address: str, *arguments: str, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command prints."""
    capsys.readouterr()
    assert main(["doctor", "--prometheus", address, *arguments]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_nothing_is_wrong(healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each check says what works, and the exit code is 0."""
    rule_count = len(
        [1 for text in render("fast").values() for _ in re.findall(r"^ +- (?:record|alert):", text, re.MULTILINE)]
    )
    text = doctor(healthy, code=0, capsys=capsys)
    lines = text.splitlines()
    assert lines[0] == f"{healthy}: no fault found"
    assert [" ".join(line.split()) for line in lines[2:]] == [
        f"works rules {rule_count} rules of version {PACK_VERSION} are evaluated, profile fast",
        re.sub(r"^", "works alerts go to ", next(re.finditer(r"http://\S+/api/v2/alerts", text))[0]),
        "works targets 2 targets up, of job laggard-exporter, laggard-ranks",
        "works interval all are scraped every 1s or oftener",
        "works ranks 2 ranks seen, metrics of all arrive",
        "works clocks of 2 ranks agree with the server's",
        "works labels no target's label replaces one of a metric",
    ]


@pytest.fixture(scope="module")
def ill(started: Processes) -> str:
    """A server with every fault at once: what is said of one does not hide another."""
    found = node(started, "ill", (300, 0))
    texts = render("fast")
    del texts["score-memory.yml"]
    texts["thresholds.yml"] = texts["thresholds.yml"].replace(f"version: {PACK_VERSION}", "version: 0.0.9")
    texts["alert-goodput.yml"] = re.sub(r"interval: \w+", "interval: 1d", texts["alert-goodput.yml"])
    texts = {file: text.replace("interval: 30s", "interval: 3s") for file, text in texts.items()}
    texts["copy.yml"] = texts["normalise-goodput.yml"]
    (nobody,) = free_ports(1)
    configuration = {
        "global": {"scrape_interval": "3s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": ["rules/*.yml"],
        "scrape_configs": [
            job("nodes", found.exporter, nobody, "no-such-host.invalid:9495", labels={"host_name": "rack"}),
            # Rank 1 is nowhere.
            job("laggard-ranks", found.ranks[0]),
            job("laggard-old", found.exporter, metrics_path="/nothing"),
            job("laggard-tls", found.exporter, scheme="https"),
            # Somebody else's is no matter of ours.
            job("foreign", nobody),
        ],
    }
    address = prometheus(started, "sick", configuration, texts)
    wait_until(lambda: series(address, SEEN) == 1, "a rank arrives")
    wait_until(
        lambda: series(address, 'training_process_steps_total{training_rank="1"} offset 2s > 0'), "so does not 1"
    )
    wait_until(lambda: len(_groups(address, evaluated=False)) <= 1, "the others are evaluated")
    wait_until(lambda: series(address, "up") == 7, "all are scraped")
    return address


def faults(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return status, detail and remedy of the findings by their checks."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for each in json.loads(text)["findings"]:
        found.setdefault(each["check"], []).append((each["status"], each["detail"], each["do"]))
    return found


def test_each_fault_has_its_line(ill: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What, where, why and what to do; exit code 1."""
    found = faults(doctor(ill, "--json", code=1, capsys=capsys))
    render_again = "laggard rules render --profile fast --output FOLDER, then reload the server"
    assert found["rules"] == [
        ("fault", f"of version 0.0.9, and this laggard has {PACK_VERSION}", render_again),
        (
            "fault",
            f"1 of {len(_shipped())} groups not loaded: laggard-score-memory",
            f"{render_again}; the server's log names a file that it refuses",
        ),
        (
            "fault",
            "1 group loaded several times, from rules/copy.yml, rules/normalise-goodput.yml",
            "leave the files of one version under rule_files, and reload the server",
        ),
        (
            "unknown",
            f"1 of {len(_shipped())} groups not evaluated yet: laggard-alert-goodput",
            "wait 1d after a start; later, the server's log",
        ),
    ]
    assert found["alerts"] == [
        (
            "fault",
            "no Alertmanager is configured or found: alerts reach nobody",
            "list it under alerting: alertmanagers; laggard init DIR writes both configurations",
        )
    ]
    said = [re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", detail) for _, detail, _ in found["targets"]]
    assert said[:3] == [
        "ADDRESS of job laggard-old: down, server returned HTTP status 404 Not Found",
        "ADDRESS of job laggard-tls: down, http: server gave HTTP response to HTTPS client",
        "ADDRESS of job nodes: down, dial tcp ADDRESS: connect: connection refused",
    ]
    assert said[3].startswith("no-such-host.invalid:9495 of job nodes: down, dial tcp: lookup no-such-host.invalid")
    assert said[4:] == ["2 targets up, of job laggard-ranks, nodes"]
    assert [do for _, _, do in found["targets"]] == [
        "metrics_path must be /metrics or /ranks/metrics; an older exporter lacks the second: update it",
        "the exporter serves without TLS: set scheme: http",
        "start laggard-exporter there, and have it listen beyond its own host: --web.listen-address=:9495",
        "correct the name in the list of targets, or the server's DNS",
        "",
    ]
    assert found["interval"] == [
        (
            "fault",
            (
                "job laggard-old, laggard-ranks, laggard-tls, nodes: scraped every 3s, and the rules (profile fast) "
                "need 1s: verdicts come late or not at all"
            ),
            "set scrape_interval: 1s",
        )
    ]
    assert found["ranks"] == [
        (
            "fault",
            "metrics do not arrive of rank 1 on rack of run llama",
            (
                "scrape /ranks/metrics of each node exporter, in a job of its own: laggard init DIR writes one; "
                "where ranks push, their log and the server's say what is refused"
            ),
        )
    ]
    seconds = float(re.sub(r"^about (\d+) s.*", r"\1", found["clocks"][0][1]))
    assert abs(seconds - 300) < 6
    assert [(status, detail.replace(f"{seconds:.0f}", "TIME"), do) for status, detail, do in found["clocks"]] == [
        (
            "fault",
            "about TIME s ahead of the server's: the clock of rank 0 on node-1 of run llama",
            "check that chronyd or ntpd runs on the host, and on the server if several hosts are named",
        )
    ]
    assert found["labels"] == [
        (
            "fault",
            "job nodes replaces host_name of metrics by labels of the target: rules name the target, not the rank",
            "set honor_labels: true (honorLabels in a PodMonitor), or take these labels from the job's targets",
        )
    ]
    text = doctor(ill, code=1, capsys=capsys).splitlines()
    assert text[0] == f"{ill}: 12 faults, 1 check without an answer"
    assert len([line for line in text if line.startswith("  fault")]) == 12
    # The faults come first, each with what to do below it.
    assert [line.split()[0] for line in text[2:6]] == ["fault", "do", "fault", "do"]


def test_an_empty_server(started: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    """No rules, no targets: both are said, and nothing is called right that was not looked at."""
    address = prometheus(started, "empty", {"scrape_configs": []}, {})
    text = doctor(address, code=1, capsys=capsys)
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        f"{address}: 3 faults, 1 check without an answer",
        "",
        "fault rules not loaded: no group of laggard's rules",
        "do laggard rules render --output FOLDER, list FOLDER/*.yml under rule_files, reload the server",
        "fault alerts no Alertmanager is configured or found: alerts reach nobody",
        "do list it under alerting: alertmanagers; laggard init DIR writes both configurations",
        "fault targets no target: this server scrapes no node exporter",
        "do start laggard-exporter on each host and list its port 9495: laggard init DIR writes the configuration",
        "",
        "unknown clocks of hosts: no rank trains now",
        "",
        "works ranks no rank trains now",
        "works labels no target's label replaces one of a metric",
    ]


def test_a_server_without_targets_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Thanos and Mimir answer queries alone: what cannot be asked has no answer; alerts on telemetry are told."""
    clash = firing("TrainingRankClash", "llama", "1")
    clash["labels"]["training_kind"] = "telemetry"
    clash["annotations"] |= {"summary": "Two processes are rank 1.", "recommendation": "End one."}
    with fake_prometheus({}, [clash, firing("TrainingStraggler", "llama", "1")]) as address:
        found = faults(doctor(address, "--json", code=1, capsys=capsys))
        refused = f"{address} does not answer as Prometheus: HTTP 404 at /api/v1"
    assert found["targets"] == [("unknown", f"{refused}/targets", "")]
    assert found["alerts"] == [
        ("unknown", f"{refused}/alertmanagers", ""),
        ("fault", "TrainingRankClash: Two processes are rank 1.", "End one."),
    ]


def test_a_server_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """One line and code 2."""
    (port,) = free_ports(1)
    assert main(["doctor", "--prometheus", f"http://127.0.0.1:{port}"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"laggard doctor: error: Prometheus at http://127.0.0.1:{port} cannot be reached")
    assert errors.count("\n") == 1


def test_the_clock_of_this_machine(
    ill: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It decides what `--at` and the ages of things mean."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 60)
    ((status, detail, do), _) = faults(doctor(ill, "--json", code=1, capsys=capsys))["clocks"]
    # The server says whole seconds.
    assert (status, re.sub("59|61", "60", detail), do) == (
        "fault",
        "the clock of this machine is 60 s behind the server's",
        "check that chronyd or ntpd runs on both",
    )


def test_a_server_that_answers_of_the_past(capsys: pytest.CaptureFixture[str]) -> None:
    """VictoriaMetrics evaluates a query 30 seconds ago by default: its clock is right all the same."""
    ago = {"time()": [({}, time.time() - 30)]}
    with fake_prometheus(ago, []) as address:
        found = faults(doctor(address, "--json", code=0, capsys=capsys))
    assert [detail for _, detail, _ in found["clocks"]] == ["of hosts: no rank trains now"]


@pytest.mark.parametrize("name", ["production", "quick", "fast", "large"])
def test_the_profile_is_known_by_the_intervals(name: str) -> None:
    """Also where a site has changed some; none at all is production."""
    profile = load_profile(pack_folder("rules"), name)
    groups = [
        Group(group, "", profile.interval(interval, group), evaluated=True, seconds=0, rules=())
        for group, (interval, _) in _shipped().items()
    ]
    groups[0] = dataclasses.replace(groups[0], interval=timedelta(seconds=77))
    assert rules.profile_of(groups).name == name
    assert rules.profile_of([]).name == "production"


def _loaded() -> list[Group]:
    def rule(name: str) -> Rule:
        return Rule(name, {"version": PACK_VERSION} if name == "laggard_rules_info" else {}, "ok", "")

    return [
        Group(name, "/etc/x/a.yml", interval, evaluated=True, seconds=0.1, rules=tuple(map(rule, names)))
        for name, (interval, names) in _shipped().items()
    ]


def test_what_is_said_of_rules() -> None:
    """Those of the pack are right; slow, failing, changed and foreign ones are told, with the place to write again."""
    profile = load_profile(pack_folder("rules"), "production")
    assert [each.status for each in rules.check(_loaded(), profile)] == ["works"]
    found = _loaded()
    found[0] = dataclasses.replace(found[0], seconds=61.0)
    (place, first), *_ = ((place, each) for place, each in enumerate(found) if each.name == "laggard-alert-telemetry")
    assert [rule.name for rule in first.rules[:2]] == ["LaggardWatchdog", "TrainingRankClash"]
    failing = dataclasses.replace(first.rules[1], health="err", error="many-to-many")
    found[place] = dataclasses.replace(first, rules=(failing, *first.rules[2:], Rule("mine", {}, "ok", "")))
    found.append(Group("laggard-gone", "/etc/x/b.yml", timedelta(seconds=15), evaluated=True, seconds=0, rules=()))
    again = "laggard rules render --profile production --output /etc/x, then reload the server"
    assert list(rules.check(found, profile)) == [
        Finding(
            "rules",
            "fault",
            f"other rules than this laggard's: {first.name} lacks LaggardWatchdog, laggard-gone is none of this "
            f"version, {first.name} has mine more",
            again,
        ),
        Finding(
            "rules",
            "fault",
            f"{failing.name} of group {first.name} fails: many-to-many",
            "two series where one must be, or a server older than 2.42: the server's log has all",
        ),
        Finding(
            "rules",
            "fault",
            f"evaluated too slowly, and so left out at times: {found[0].name} (61.0 s every 15s)",
            "give the server more processors, or its rules the profile large; docs/deploy.md has shards",
        ),
    ]


@pytest.mark.parametrize(
    ("error", "do"),
    [
        ("query timed out in expression evaluation", "raise --query.timeout, "),
        ("query processing would load too many samples into memory", "raise --query.max-samples"),
        ("found duplicate series for the match group", "two series where one must be"),
    ],
)
def test_an_error_of_a_rule_has_its_remedy(error: str, do: str) -> None:
    """By what Prometheus says."""
    found = _loaded()
    found[0] = dataclasses.replace(found[0], rules=(dataclasses.replace(found[0].rules[0], health="err", error=error),))
    said = {each.detail: each.do for each in rules.check(found, load_profile(pack_folder("rules"), "production"))}
    (remedy,) = [each for detail, each in said.items() if " fails: " in detail]
    assert remedy.startswith(do)


def test_all_rules_loaded_twice_are_one_line() -> None:
    """Whichever way the files of the second copy are named."""
    found = _loaded()
    again = [dataclasses.replace(group, file="/etc/y/all.yml") for group in found]
    said = list(rules.check([*found, *again], load_profile(pack_folder("rules"), "production")))
    assert [each.detail for each in said] == [
        f"{len(found)} groups loaded several times, from /etc/x/a.yml, /etc/y/all.yml"
    ]


def test_rules_of_a_local_run_are_those_that_it_wrote() -> None:
    """Its groups have other names, and its alerts go to a terminal; what fails is a fault there too."""
    local = load_profile(pack_folder("rules"), "local")
    found = [
        Group(
            group["name"],
            "/runs/x/servers/rules.yml",
            parse_duration(group["interval"]),
            evaluated=True,
            seconds=0.1,
            rules=tuple(
                Rule(
                    rule.get("record") or rule["alert"],
                    {key: str(text) for key, text in rule.get("labels", {}).items()},
                    "ok",
                    "",
                )
                for rule in group["rules"]
            ),
        )
        for group in yaml.safe_load(merged(render_pack(local), local.name))["groups"]
    ]
    assert rules.ours(found) == found
    assert rules.profile_of(found) == local
    number = sum(len(group.rules) for group in found)
    assert list(rules.check(found, local)) == [
        Finding("rules", "works", f"{number} rules of version {PACK_VERSION} are evaluated, profile local")
    ]
    assert rules.alertmanagers([], found) == Finding("alerts", "works", "go to the terminal of laggard run --local")
    failing = dataclasses.replace(found[0].rules[0], health="err", error="many-to-many")
    found[0] = dataclasses.replace(found[0], rules=(failing, *found[0].rules[1:]))
    (fault,) = rules.check(found, local)
    assert fault.detail == f"{failing.name} of group laggard-merged-local-10s fails: many-to-many"


#: What Prometheus says of a scrape that fails, from its source and from issues of its users.
ERRORS = {
    'Get "http://a:9495/metrics": context deadline exceeded': "open the port",
    'Get "http://a:9495/metrics": dial tcp 10.0.0.1:9495: i/o timeout': "open the port",
    'Get "http://a:9495/metrics": dial tcp 10.0.0.1:9495: connect: no route to host': "check the network",
    "server returned HTTP status 401 Unauthorized": "give the job the basic_auth",
    "server returned HTTP status 400 Bad Request": "the exporter serves with TLS",
    'Get "http://a:9495/metrics": net/http: HTTP/1.x transport connection broken: malformed HTTP response "\\x15"': (
        "the exporter serves with TLS"
    ),
    'Get "https://a:9495/metrics": http: server gave HTTP response to HTTPS client': "the exporter serves without TLS",
    'Get "https://a/metrics": x509: certificate signed by unknown authority': "name the authority",
    "server returned HTTP status 503 Service Unavailable": "the exporter cannot read the state folder",
    "sample limit exceeded": "raise sample_limit",
    "something else": "open the address",
}


@pytest.mark.parametrize(("error", "do"), ERRORS.items())
def test_an_error_of_a_scrape_has_its_remedy(error: str, do: str) -> None:
    """By what Prometheus says."""
    assert targets.advice(error).startswith(do)


def test_targets_of_a_kind_are_one_line() -> None:
    """A thousand hosts that refuse are one finding, which names a few of them."""
    refused = [
        Target("nodes", f"n{number}:9495", "http://n", "down", "connection refused", None) for number in range(7)
    ]
    waiting = Target("nodes", "n9:9495", "http://n", "unknown", "", None)
    assert [(each.status, each.detail) for each in targets.down([*refused, waiting])] == [
        ("fault", "n0:9495, n1:9495, n2:9495, n3:9495, n4:9495 and 2 more of job nodes: down, connection refused"),
        ("unknown", "n9:9495: not scraped yet"),
    ]
