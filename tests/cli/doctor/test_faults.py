"""``laggard doctor`` against a real Prometheus: nothing is wrong where nothing is, and each fault has its line."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator

import pytest

from laggard.version import PACK_VERSION
from laggard_cli.demo.servers import free_ports
from laggard_cli.doctor import ranks
from laggard_cli.doctor.rules import _shipped
from laggard_cli.main import main
from laggard_cli.pack import pack_folder
from laggard_cli.prometheus import Prometheus
from laggard_cli.rules import render
from laggard_cli.rules.profiles import load_profile
from laggard_cli.ways import direct
from tests.cli.doctor.site import SEEN, doctor, faults, job, node, prometheus, series
from tests.collector.support import Processes, missing, processes
from tests.support.fake_prometheus import fake_prometheus, firing
from tests.support.waiting import until


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
    until(lambda: series(address, SEEN) == 2, "ranks arrive")
    until(lambda: not _groups(address, evaluated=False), "every group is evaluated")
    return address


def _groups(address: str, *, evaluated: bool) -> list[str]:
    found = direct().get(f"{address}/api/v1/rules").json()["data"]["groups"]
    return [each["name"] for each in found if each["lastEvaluation"].startswith("0001") != evaluated]


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
    texts["score.yml"] = texts["score.yml"].replace(f"version: {PACK_VERSION}", "version: 0.0.9")
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
    until(lambda: series(address, SEEN) == 1, "a rank arrives")
    until(lambda: series(address, 'training_process_steps_total{training_rank="1"} offset 2s > 0'), "so does not 1")
    until(lambda: len(_groups(address, evaluated=False)) <= 1, "the others are evaluated")
    until(lambda: series(address, "up") == 7, "all are scraped")
    return address


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
    """Thanos and Mimir answer queries alone: what cannot be asked has no answer.

    Alerts on telemetry are told, and that alerts do not arrive.
    """
    clash = firing("TrainingRankClash", "llama", "1")
    clash["labels"]["training_kind"] = "telemetry"
    clash["annotations"] |= {"summary": "Two processes are rank 1.", "recommendation": "End one."}
    refusing = [({"alertmanager": "http://pager:9093/api/v2/alerts"}, 4)]
    series = {"prometheus_notifications_errors_total": refusing}
    with fake_prometheus(series, [clash, firing("TrainingStraggler", "llama", "1")]) as address:
        found = faults(doctor(address, "--json", code=1, capsys=capsys))
        refused = f"{address} does not answer as Prometheus: HTTP 404 at /api/v1"
    assert found["targets"] == [("unknown", f"{refused}/targets", "")]
    assert found["alerts"] == [
        ("unknown", f"{refused}/alertmanagers", ""),
        (
            "fault",
            "do not reach http://pager:9093/api/v2/alerts: sending has failed again and again for minutes",
            "start it, or read in Prometheus' log what it answers",
        ),
        ("fault", "TrainingRankClash: Two processes are rank 1.", "End one."),
    ]


def test_a_question_that_is_refused_hides_no_other_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Mimir, Thanos and VictoriaMetrics have limits: what one refuses is unknown, and the rest is said."""
    limit = "the query exceeded the maximum number of series (err-mimir-max-series-per-query)"
    exported = {"exported_training_rank": [({"job": "pods"}, 1)]}
    with fake_prometheus({"training_process_steps_total": limit, **exported}, []) as address:
        found = faults(doctor(address, "--json", code=1, capsys=capsys))
    assert found["ranks"] == [("unknown", f"Prometheus at {address} refuses /api/v1/query: {limit}", "")]
    assert found["labels"][0][:2] == (
        "fault",
        "job pods replaces training_rank of metrics by labels of the target: rules name the target, not the rank",
    )


def test_ranks_that_nobody_scrapes_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A shard that has half of the targets, or a list without a host: how many ranks of which run the rules miss."""
    runs = [({"training_run": run}, 4) for run in ("llama", "opus")]
    sizes = [({"training_run": run}, 8) for run in ("llama", "opus")]
    answers = {"run:training_ranks_missing:count": runs, "run:training_ranks_expected:max": sizes}
    with fake_prometheus(answers, []) as address:
        found = faults(doctor(address, "--json", code=1, capsys=capsys))
    ((status, detail, do),) = found["ranks"]
    assert (status, detail) == (
        "fault",
        "the rules have never seen 4 of 8 ranks of run llama, 4 of 8 ranks of run opus",
    )
    assert do.startswith("list the hosts of all ranks in the scrape jobs; of servers that share targets (hashmod,")


def test_samples_that_arrive_too_late_for_the_rules_are_said() -> None:
    """Of a run whose newest samples are older than what the rules look back, the age is the reason; not of others."""
    runs = [({"training_run": "delayed"}, 1), ({"training_run": "other"}, 1)]
    ages = [({"training_run": "delayed"}, 150.0), ({"training_run": "other"}, 59.0)]
    answers = {"timestamp(training_process_up)": ages, "unless on (cluster, training_run) last_over_time": runs}
    with fake_prometheus(answers, []) as address:
        late, other = ranks.unrecorded(Prometheus(address), load_profile(pack_folder("rules"), "production"))
    assert late.detail == "look back 1m, and the newest samples of delayed are 150 s old"
    assert late.do.startswith("shorten what holds samples up, such as a queue of remote write or of a Collector")
    assert other.detail == "record nothing of other, whose metrics are here"


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
