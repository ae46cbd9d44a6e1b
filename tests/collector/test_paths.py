"""The same job watched by three paths at once: scraped, by OTLP, and through an agent and a gateway."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard_cli.demo import stack
from laggard_cli.demo.servers import free_ports
from laggard_cli.demo.stack import Stack
from laggard_cli.diagnose.gather import diagnose
from laggard_cli.prometheus import Prometheus
from tests.collector.support import agent, gateway, named, newest_prometheus, processes
from tests.support.otlp import Receiver
from tests.support.waiting import turns, until

RUN = "paths"
RANKS = 2
#: So long may the job take to start and the slow rank to be found by all; both together take 45 s on two busy cores.
SECONDS = 200

Labels = frozenset[tuple[str, str]]


class Tee:
    """Takes what ranks push and hands the same bytes to several: metrics to all of them, spans to the first."""

    def __init__(self, urls: list[str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept = ("Content-Type", "Content-Encoding")
                headers = {name: value for name in kept if (value := self.headers.get(name))}
                status = 200
                try:
                    for url in urls[: 1 if self.path == "/v1/traces" else None]:
                        request = urllib.request.Request(f"{url}{self.path}", body, headers)
                        with urllib.request.urlopen(request, timeout=5) as answer:
                            answer.read()
                except OSError:
                    status = 503  # the rank tries again
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()


class PushingStack(Stack):
    """The demo's job and servers, with ranks that also push by OTLP."""

    otlp = ""

    def _training_environment(self) -> dict[str, str]:
        return super()._training_environment() | {
            "OTEL_METRICS_EXPORTER": "laggard_prometheus,otlp",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.otlp,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
            "LAGGARD_TRACE_EVERY": "20",
        }

    def use_prometheus(self, program: Path) -> None:
        """Scrape with this one."""
        self._programs["prometheus"] = str(program)

    @property
    def exporter_port(self) -> int:
        return int(self.addresses["exporter"].rpartition(":")[2])


def recorded(server: Prometheus) -> tuple[set[Labels], set[Labels]]:
    """Return the labels, name included, of what the rules record all the time, and of all that they recorded lately.

    What comes and goes with a sample is seen by servers at moments of their own, or by one of them alone.
    """
    recording = '{__name__=~".+:.+"}'
    steady = (f"{recording}{offset}" for offset in ("", " offset 4s", " offset 8s"))
    found = [
        {frozenset(sample.labels.items()) for sample in server.query(query)}
        for query in (f"last_over_time({recording}[1m])", *steady)
    ]
    return set[Labels].intersection(*found), found[0]


def verdicts(server: Prometheus) -> set[Labels]:
    """Return the labels of the alerts that fire now."""
    return {frozenset(sample.labels.items()) for sample in server.query('ALERTS{alertstate="firing"}')}


def failed(server: Prometheus) -> list[str]:
    """Return the ranks of which one path says that they ended first."""
    return [dict(each)["training_rank"] for each in verdicts(server) if ("alertname", "TrainingRunFailed") in each]


def measured(server: Prometheus, job: str) -> set[Labels]:
    """Return the labels of what ranks measure, by one way; those of the target, and of buckets, are left out."""
    query = f'{{__name__=~"training_.*",__name__!~".*_bucket",job="{job}"}}'
    gone = {"job", "instance"}
    return {frozenset(pair for pair in each.labels.items() if pair[0] not in gone) for each in server.query(query)}


def own_times(server: Prometheus) -> dict[str, float]:
    """Return each rank's own time."""
    found = server.query(f'run_rank:training_step_own_seconds:mean{{training_run="{RUN}"}}')
    return {sample.labels["training_rank"]: sample.value for sample in found}


def test_three_paths_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rules record and what they say of a slow rank is the same, label for label; spans arrive as well.

    The agent gets what ranks measure twice, pushed and by a scrape, and it counts once. Then a rank is killed, and the
    launcher ends the other: each path names the one that ended first.
    """
    newest = newest_prometheus()
    monkeypatch.setattr(stack, "RANKS", RANKS)
    ports = free_ports(10)
    ours, theirs = named(ports[:4], "grpc", "http", "health", "self"), named(ports[4:7], "grpc", "health", "self")
    pushed, written = (f"http://127.0.0.1:{port}" for port in ports[7:9])
    tee = Tee([f"http://127.0.0.1:{ours['http']}", f"{pushed}/api/v1/otlp"])
    job = PushingStack(tmp_path, RUN)
    job.otlp = tee.url
    # One release for all three: what a range holds at its edges differs between them.
    job.use_prometheus(newest)
    with Receiver() as back_end, processes(tmp_path) as started, contextlib.ExitStack() as at_end:
        at_end.callback(tee.close)
        started.start("agent", *agent(tmp_path, {**ours, "exporter": job.exporter_port}, [theirs["grpc"]]))
        spans = back_end.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
        started.start("gateway", *gateway(tmp_path, theirs, f"{written}/api/v1/write", spans, SAMPLED_PERCENT="100"))
        for name, each in (("agent", ours), ("gateway", theirs)):
            started.wait(name, f"http://127.0.0.1:{each['health']}/")
        with job:
            job.control({"backward": {"rank": 1, "amount": 0.2}})
            rules = f"{tmp_path / 'rules'}/*.yml"
            node = [{"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{job.exporter_port}"]}]}]
            for name, address, flag, scraped in (
                # What ranks push. The node exporter is scraped: over OTLP hosts and GPUs have OpenTelemetry's names.
                ("pushed", pushed, "--web.enable-otlp-receiver", node),
                ("written", written, "--web.enable-remote-write-receiver", []),
            ):
                configuration = {
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                    "rule_files": [rules],
                    "scrape_configs": scraped,
                    "storage": {"tsdb": {"out_of_order_time_window": "10m"}},
                }
                (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(configuration))
                arguments = [
                    f"--config.file={tmp_path / f'{name}.yml'}",
                    f"--storage.tsdb.path={tmp_path / f'data-{name}'}",
                    f"--web.listen-address={address.removeprefix('http://')}",
                    flag,
                ]
                started.start(name, [newest, *arguments])
            for name, address in (("pushed", pushed), ("written", written)):
                started.wait(name, f"{address}/-/ready")
            servers = [Prometheus(address) for address in (job.addresses["prometheus"], pushed, written)]
            for server in servers:
                at_end.callback(server.close)
            _compare(servers)
            until(lambda: ranks_in_traces(back_end) == {"0", "1"}, "no trace has all ranks")
            job.signal_ranks(signal.SIGKILL, 1)
            killed = time.monotonic()
            for server in servers:
                until(lambda server=server: failed(server) == ["1"], "the killed rank is not named")
            print(f"the killed rank is named by all after {time.monotonic() - killed:.1f} s")
            for server in servers:
                (found,) = diagnose(server, RUN)
                assert found.failure is not None
                assert found.failure.rank == "1"


def _compare(servers: list[Prometheus]) -> None:
    agreed: dict[str, int] = {}
    differing: list[str] = []
    for _ in turns(SECONDS, lambda: "\n".join(differing)):
        labels, fire = [recorded(server) for server in servers], [verdicts(server) for server in servers]
        straggler = {("alertname", "TrainingStraggler"), ("training_rank", "1"), ("training_phase", "backward")}
        found = all(any(straggler <= each for each in firing) for firing in fire)
        # Scraped, by the node's page and the agent, pushed to Prometheus, and pushed to the agent.
        ways = ((0, "ranks"), (2, "laggard-ranks"), (1, "training"), (2, "training"))
        raw = [measured(servers[number], job) for number, job in ways]
        everywhere = set[Labels].intersection(*(seen for _, seen in labels))
        everything = {"recorded": [steady | everywhere for steady, _ in labels], "alerts": fire, "measured": raw}
        for kind, sets in everything.items():
            if found and all(each == sets[0] for each in sets):
                agreed.setdefault(kind, len(sets[0]))
        if len(agreed) == len(everything):
            print("series that are the same:", agreed)
            assert min(agreed["recorded"], agreed["measured"]) > 100
            break
        differing[:] = [f"{kind}: {differences(sets)}" for kind, sets in everything.items() if kind not in agreed]
    until(lambda: alike(list(map(own_times, servers))), "own times differ")


def alike(found: list[dict[str, float]]) -> bool:
    """Say whether all have the same ranks, with means over the same seconds of other samples."""
    return all(
        each.keys() == found[0].keys()
        and len(each) == RANKS
        and all(abs(each[rank] / value - 1) < 0.25 for rank, value in found[0].items())
        for each in found
    )


def differences(found: list[set[Labels]]) -> str:
    """Say what not all paths have."""
    everywhere = set[Labels].intersection(*found)
    lines = [
        f"path {path}: {json.dumps(dict(sorted(each)))}"
        for path, labels in enumerate(found)
        for each in labels - everywhere
    ]
    return "\n".join([f"{[len(labels) for labels in found]}", *sorted(lines)[:40]])


def ranks_in_traces(back_end: Receiver) -> set[str]:
    """Return the ranks of the trace that has most."""
    traces: dict[bytes, set[str]] = {}
    for span in list(back_end.spans):
        values = {each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes}
        if "training.rank" in values:
            traces.setdefault(span.trace_id, set()).add(values["training.rank"])
    return max(traces.values(), key=len, default=set())
