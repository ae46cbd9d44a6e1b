"""``laggard doctor`` and ``laggard diagnose`` where a site's own settings keep the rules from reading ranks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard_cli.clusters import Run
from laggard_cli.demo.servers import free_ports
from laggard_cli.main import main
from laggard_cli.prometheus import Prometheus
from laggard_cli.rules import render
from laggard_cli.unread import unread
from tests.cli.doctor.site import RUN, SEEN, Node, doctor, faults, job, node, pid_of, series
from tests.cli.gate.runs import prometheus_with
from tests.collector.support import Processes, newest_prometheus, processes
from tests.support.waiting import until


class Site:
    """A node with two ranks, and whatever Prometheus a test starts beside it."""

    def __init__(self, started: Processes, found: Node) -> None:
        self._started = started
        self.exporter = found.exporter
        self.prometheus = newest_prometheus()

    def server(
        self,
        name: str,
        *flags: str,
        scraping: bool = True,
        scrape: dict[str, Any],
        rules: dict[str, str] | None = None,
        **more: Any,
    ) -> str:
        """Start the newest Prometheus with two jobs as the documentation has them; return its address."""
        (port,) = free_ports(1)
        folder = self._started.folder / name
        (folder / "rules").mkdir(parents=True)
        for file, text in {"score.yml": render("fast")["score.yml"], **(rules or {})}.items():
            (folder / "rules" / file).write_text(text)
        jobs = [
            job("laggard-exporter", self.exporter, **scrape),
            job("laggard-ranks", self.exporter, metrics_path="/ranks/metrics", **scrape),
        ]
        agent = "--agent" in flags
        configuration = {
            "global": {"scrape_interval": "1s", **({} if agent else {"evaluation_interval": "1s"})},
            **({} if agent else {"rule_files": ["rules/*.yml"]}),
            "scrape_configs": jobs if scraping else [],
            **more,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        storage = f"--storage.{'agent' if agent else 'tsdb'}.path={folder / 'data'}"
        listen = f"--web.listen-address=127.0.0.1:{port}"
        command = [self.prometheus, "--config.file=prometheus.yml", storage, listen, *flags]
        self._started.start(name, command, at=folder)
        address = f"http://127.0.0.1:{port}"
        self._started.wait(name, f"{address}/-/ready")
        return address


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The node exporter and the ranks."""
    newest_prometheus()
    with processes(tmp_path_factory.mktemp("settings")) as started:
        yield Site(started, node(started, "node", (0, 0)))


def _scraped(address: str, query: str = SEEN) -> None:
    until(lambda: series(address, query) == 2, "ranks arrive")


def test_native_histograms_are_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the server makes native histograms of classic ones, the rules read nothing: the setting is named."""
    address = site.server("native", scrape={"convert_classic_histograms_to_nhcb": True})
    _scraped(address, "training_step_own_duration_seconds")
    (found,) = faults(doctor(address, "--json", code=1, capsys=capsys))["names"]
    assert found[1] == "histograms arrive as native ones, and the rules read classic ones"
    assert found[2].startswith("set always_scrape_classic_histograms: true in the scrape job")
    both = site.server(
        "both", scrape={"convert_classic_histograms_to_nhcb": True, "always_scrape_classic_histograms": True}
    )
    _scraped(both, "training_step_own_duration_seconds_count and ignoring (job) training_step_own_duration_seconds_sum")
    found = faults(doctor(both, "--json", code=1, capsys=capsys))
    assert not found.keys() & {"names", "series"}


def test_other_names_are_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A prefix of the site's on all metrics: doctor and diagnose name what arrives and what the rules read."""
    rename = {"source_labels": ["__name__"], "target_label": "__name__", "replacement": "site_$1", "regex": "(.*)"}
    address = site.server("renamed", scrape={"metric_relabel_configs": [rename]})
    _scraped(address, "site_training_steps_total")
    ((_, why, do),) = faults(doctor(address, "--json", code=1, capsys=capsys))["names"]
    assert why == "steps arrive as site_training_steps_total, and the rules read training_steps_total"
    assert do.startswith("take out what renames metrics: metric_relabel_configs, ")
    assert main(["diagnose", "--prometheus", address]) == 2
    assert capsys.readouterr().err == f"laggard diagnose: error: Prometheus at {address}: {why}; {do}\n"


def test_labels_that_are_lost_are_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels are dropped, to save series: doctor and diagnose name them, those of one metric too, and the cause."""
    drop = {"regex": "training_(rank|phase|signal|state)", "action": "labeldrop"}
    address = site.server("nameless", scrape={"metric_relabel_configs": [drop]})
    until(lambda: series(address, "training_step_own_duration_seconds_count") == 1, "ranks arrive")
    until(lambda: series(address, "training_process_state") == 1, "and what the exporter sees of them")
    ((_, why, do),) = faults(doctor(address, "--json", code=1, capsys=capsys))["names"]
    lost = "training_phase, training_rank, training_signal, training_state"
    assert why == f"series arrive without the labels {lost}"
    assert do.startswith("take out what drops or moves labels: labeldrop in metric_relabel_configs; ")
    assert main(["diagnose", "--prometheus", address]) == 2
    assert capsys.readouterr().err == f"laggard diagnose: error: Prometheus at {address}: {why}; {do}\n"


def test_a_stopped_rank_is_no_fault_of_the_telemetry(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """While a signal holds a rank its metrics do not arrive, and nothing of the set-up is wrong."""
    address = site.server("stopped", scrape={})
    _scraped(address, "training_process_steps_total offset 2s > 0")
    pid = pid_of(address, rank=1)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: series(address, "training_process_stopped == 1 unless training_rank_state") == 1, "it stops")
        found = faults(doctor(address, "--json", code=1, capsys=capsys))["ranks"]
    finally:
        os.kill(pid, signal.SIGCONT)
    held = f"stopped: rank 1 on node-1 of run {RUN}"
    assert [each[:2] for each in found] == [("works", f"1 rank seen, metrics of all arrive; {held}")]


def test_counters_that_are_lost_are_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Of ranks that push deltas, gauges arrive alone: what makes them is named, not that the ranks are silent."""
    drop = {"source_labels": ["__name__"], "action": "drop", "regex": "training_(steps.*_total|.*_(sum|count|bucket))"}
    address = site.server("uncounted", scrape={"metric_relabel_configs": [drop]})
    _scraped(address, "training_last_step_timestamp_seconds")
    _scraped(address, "training_process_steps_total offset 2s > 0")
    found = faults(doctor(address, "--json", code=1, capsys=capsys))
    assert "ranks" not in found
    ((_, why, do),) = found["names"]
    assert why == "gauges of its ranks arrive, and no counters"
    assert do.startswith("take out what makes deltas of them: OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE of")


def test_deltas_that_are_kept_as_they_are_are_said(tmp_path: Path) -> None:
    """A server may take deltas for sums, as VictoriaMetrics does: a run that restarts each minute has none."""
    minutes = range(21)
    runs = {
        "deltas": [1.0, 1.02, 0.99, 1.01] * 5 + [1.0],
        "sums": [float(number) for number in minutes],
        "restarts": [float(number % 4) for number in minutes],
    }
    lines = [
        f'training_step_own_duration_seconds_sum{{training_run="{run}"}} {value} {1_700_000_000 + 15 * number}'
        for run, values in runs.items()
        for number, value in enumerate(values)
    ]
    with (
        prometheus_with(tmp_path, "\n".join([*lines, "# EOF\n"])) as url,
        contextlib.closing(Prometheus(url)) as server,
    ):
        found = unread(server, 1_700_000_300)
    assert {run.name: each.why for run, each in found.items()} == {
        "deltas": "counters of its ranks arrive as deltas, and the rules read sums"
    }


def test_peer_groups_that_are_left_out_are_said(tmp_path: Path) -> None:
    """State files say that ranks are in groups, and no series of theirs: stages would be compared with each other."""
    lines = [
        f'{name}{{training_run="{run}",training_peer_group="{group}"}} 1 1700000000'
        for run, *groups in (("grouped", "pp0", "pp0"), ("dropped", "pp0", ""), ("plain", "", ""))
        for name, group in zip(
            ("training_process_info", "training_step_own_duration_seconds_count"), groups, strict=True
        )
    ]
    with (
        prometheus_with(tmp_path, "\n".join([*lines, "# EOF\n"])) as url,
        contextlib.closing(Prometheus(url)) as server,
    ):
        found = unread(server, 1_700_000_000)
    assert "training_peer_group" in found[Run("", "dropped")].why
    assert not any("training_peer_group" in each.why for run, each in found.items() if run.name != "dropped")


def test_metrics_that_are_left_out_are_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Of metrics that a site drops to save, those are named that rules read of each rank."""
    drop = {"source_labels": ["__name__"], "action": "drop", "regex": ".*_sum|training_process_info|laggard_.*"}
    address = site.server("dropped", scrape={"metric_relabel_configs": [drop]})
    _scraped(address)
    _scraped(address, "training_process_up offset 2s and training_process_up")
    _scraped(address, "training_steps_total offset 2s > 100")
    ((status, detail, _),) = faults(doctor(address, "--json", code=1, capsys=capsys))["series"]
    assert (status, detail) == (
        "fault",
        (
            "5 metrics that the rules read are lost on the way: laggard_exporter_rank_pages, "
            "training_phase_duration_seconds_sum, training_process_info, training_step_duration_seconds_sum, "
            "training_step_own_duration_seconds_sum"
        ),
    )
    _scraped(address, "training_process_up offset 30s and training_process_up")
    _scraped(address, "training_steps_total offset 30s > 100")
    assert main(["diagnose", "--prometheus", address]) == 2
    assert (
        "4 metrics that the rules read are lost on the way: training_phase_duration_seconds_sum, "
        "training_process_info, training_step_duration_seconds_sum, training_step_own_duration_seconds_sum; let "
    ) in capsys.readouterr().err


def test_a_page_that_is_left_out_as_a_whole_is_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Targets are up, and all that they serve is dropped: that is not "no rank trains now" alone."""
    keep = {"source_labels": ["__name__"], "action": "keep", "regex": "node_.*"}
    address = site.server("kept", scrape={"metric_relabel_configs": [keep]})
    _scraped(address, "up == 1")
    ((_, detail, _),) = faults(doctor(address, "--json", code=1, capsys=capsys))["series"]
    assert detail == "1 metric that the rules read is lost on the way: laggard_exporter_rank_pages"


def test_rules_that_read_another_namespace_are_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the operator has rules read their own namespace alone, they are evaluated, and record nothing of a run."""
    text = render("fast")["normalise.yml"]
    own = re.sub(r"\b(training_\w+)(?:\{([^}]*)\})?\[", r'\1{\2,namespace="monitoring"}[', text).replace("{,", "{")
    address = site.server("enforced", scrape={}, rules={"normalise.yml": own})
    _scraped(address, "training_process_up offset 4s")
    until(lambda: series(address, "laggard_rules_info") == 1, "rules are evaluated")
    assert (
        "fault",
        "record nothing of llama, whose metrics are here",
    ) in [found[:2] for found in faults(doctor(address, "--json", code=1, capsys=capsys))["rules"]]
    known = site.server("own", scrape={}, rules={"normalise.yml": text})
    _scraped(known, "training_process_up offset 4s")
    until(lambda: series(known, "run:training_ranks_live:count") == 1, "the run is recorded")
    said = faults(doctor(known, "--json", code=1, capsys=capsys))["rules"]
    assert not any("record nothing" in detail for _, detail, _ in said)


def test_clusters_that_differ_are_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """One of the two jobs has the label: that is said, and not that half of the metrics is missing on either side."""
    east = {
        "source_labels": ["__metrics_path__"],
        "regex": "/ranks/.*",
        "target_label": "cluster",
        "replacement": "east",
    }
    address = site.server("clusters", scrape={"relabel_configs": [east]})
    _scraped(address)
    _scraped(address, "training_process_steps_total offset 2s > 0")
    assert faults(doctor(address, "--json", code=1, capsys=capsys))["ranks"] == [
        (
            "fault",
            (
                "another label cluster than on their node exporter's metrics: rank 0 on node-1, 1 on node-1 "
                "of run llama of cluster east"
            ),
            "give both jobs of a host the same label cluster, or neither",
        )
    ]


def test_labels_of_types_and_units(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Clocks are compared also where Prometheus keeps type and unit of each metric as labels."""
    address = site.server("typed", "--enable-feature=type-and-unit-labels", scrape={})
    _scraped(address)
    found = faults(doctor(address, "--json", code=1, capsys=capsys))
    assert found["clocks"] == [("works", "of 2 ranks agree with the server's", "")]


def test_a_lookback_that_is_too_short_is_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Where queries forget what is recorded before it is recorded again, verdicts are missing."""
    address = site.server("short", "--query.lookback-delta=20s", scrape={})
    found = faults(doctor(address, "--json", code=1, capsys=capsys))["rules"]
    assert (
        "fault",
        "series are recorded every 30s at the longest, and queries look back 20s: verdicts are missing",
        "start the server with --query.lookback-delta=5m",
    ) in found


def test_an_agent_that_scrapes_for_the_server(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A server to which an agent writes has no targets, and nothing is wrong with that."""
    address = site.server("receiver", "--web.enable-remote-write-receiver", scraping=False, scrape={})
    site.server("agent", "--agent", scrape={}, remote_write=[{"url": f"{address}/api/v1/write"}])
    _scraped(address)
    found = faults(doctor(address, "--json", code=1, capsys=capsys))
    assert found["targets"] == [("works", "none of its own: what node exporters serve is written to it", "")]


def test_rules_that_are_evaluated_elsewhere(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a server that gets what another one records, no rules and no Alertmanager are asked: that one is named."""
    address = site.server(
        "central", "--web.enable-remote-write-receiver", scraping=False, scrape={}, rule_files=list[str]()
    )
    keep = {"source_labels": ["__name__"], "action": "keep", "regex": "laggard_rules_info"}
    site.server("leaf", scrape={}, remote_write=[{"url": f"{address}/api/v1/write", "write_relabel_configs": [keep]}])
    until(lambda: series(address, "laggard_rules_info") == 1, "what is recorded arrives")
    found = faults(doctor(address, "--json", code=1, capsys=capsys))
    ((status, detail, do),) = found["rules"]
    assert (status, detail.partition(":")[0]) == ("unknown", "evaluated elsewhere")
    assert do == "give laggard doctor and diagnose the server that evaluates them"
    assert "alerts" not in found


def test_what_arrives_rarely_has_no_other_clock(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Where ranks are heard of every 12 seconds, what they say is as old as that: no clock is behind for it."""
    jobs = [
        job("laggard-exporter", site.exporter),
        job("laggard-ranks", site.exporter, metrics_path="/ranks/metrics", scrape_interval="12s"),
    ]
    address = site.server("rarely", scrape={}, scrape_configs=jobs)
    behind = "timestamp(training_process_last_step_age_seconds) - on (training_run, training_rank) group_left ()"
    until(lambda: series(address, f"{behind} training_last_step_timestamp_seconds > 5") == 2, "time passes")
    found = faults(doctor(address, "--json", code=1, capsys=capsys))
    assert found["clocks"] == [("works", "of 2 ranks agree with the server's", "")]


def test_names_with_other_escapes(site: Site) -> None:
    """No name of ours needs an escape, so all of them arrive as they are whichever one Prometheus asks for."""
    scrape = {"metric_name_validation_scheme": "legacy", "metric_name_escaping_scheme": "dots"}
    address = site.server("dots", scrape=scrape)
    _scraped(address)
    assert series(address, '{__name__=~".*__.*"}') == 0
