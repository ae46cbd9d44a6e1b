"""One target for each node: the exporter's pages of its ranks, and how Prometheus finds them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from laggard_exporter import argument_types, flags
from laggard_exporter.ranks import discovery
from laggard_exporter.ranks.discovery import TargetFile, Targets
from laggard_exporter.ranks.endpoints import Endpoints, listeners
from laggard_exporter.web import ranks
from tests.exporter.ranks.serving import serving_rank
from tests.exporter.support import TIMEOUT, Exporter, exporter, fresh, live_rank, parse, promtool_check, starting_with
from tests.support.waiting import until

ONLY_STATE = ("--collector.disable-defaults", "--collector.state")
PROC, SYS = Path("/proc"), Path("/sys")


def results(samples: dict[str, float]) -> dict[str, float]:
    """Return what became of the ranks, without those that are none."""
    found = starting_with(samples, "laggard_exporter_rank_pages")
    return {series.split('"')[1]: value for series, value in found.items() if value}


def page_of(node: Exporter, timeout: str = "10") -> dict[str, float]:
    """Return the samples of all ranks."""
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": timeout}
    request = urllib.request.Request(node.url.replace("/metrics", "/ranks/metrics"), headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return parse(response.read().decode())


def test_all_ranks_of_a_node_are_on_one_page(tmp_path: Path) -> None:
    """The page is valid and has every series of every rank; one that ends is gone, one that breaks off is counted."""
    with exporter(*ONLY_STATE, f"--state.directory={tmp_path}") as node:
        assert results(page_of(node)) == {}
        with serving_rank(tmp_path, 0) as first, serving_rank(tmp_path, 0, "run-2") as second:
            with serving_rank(tmp_path, 1):
                _, text = node.get(node.url.replace("/metrics", "/ranks/metrics"))
                assert promtool_check(text) == ""
                samples = parse(text)
                assert results(samples) == {"merged": 3}
                steps = starting_with(samples, "training_steps_total")
                assert steps == {
                    'training_steps_total{training_rank="0",training_run="run-1"}': 10,
                    'training_steps_total{training_rank="0",training_run="run-2"}': 10,
                    'training_steps_total{training_rank="1",training_run="run-1"}': 11,
                }
                assert len(starting_with(samples, "target_info")) == 3
            assert len(starting_with(page_of(node), "training_steps_total")) == 2
            second.page = second.page[:-30]
            samples = page_of(node)
            assert results(samples) == {"merged": 1, "rejected": 1}
            assert starting_with(samples, "training_") == starting_with(parse(first.page), "training_")


def test_a_rank_that_does_not_answer_costs_itself(tmp_path: Path) -> None:
    """A slow, a stopped and a closed one are absent and counted, in most of the scrape's time; the others are there."""
    with (
        exporter(*ONLY_STATE, f"--state.directory={tmp_path}") as node,
        serving_rank(tmp_path, 0),
        serving_rank(tmp_path, 1) as slow,
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as closed,
        live_rank(tmp_path, fresh(rank=2, metrics_port=silent.getsockname()[1])) as stopped,
        live_rank(tmp_path, fresh(rank=3, metrics_port=closed.getsockname()[1])),
    ):
        closed.close()
        stopped.send_signal(signal.SIGSTOP)
        until(lambda: "T (stopped)" in Path(f"/proc/{stopped.pid}/status").read_text())
        slow.seconds = 30
        started = time.monotonic()
        samples = page_of(node, "1.5")
        assert time.monotonic() - started < 1.5
        assert results(samples) == {"merged": 1, "no_answer": 1, "stopped": 1, "not_listening": 1}
        assert len(starting_with(samples, "training_steps_total")) == 1
        # Nor does it keep those that ask for something else.
        assert node.scrape()["laggard_exporter_state_directory_exists"] == 1
        slow.seconds, slow.page = 0, "x 1\n" * (1 << 20)
        assert results(page_of(node)) == {"merged": 1, "no_answer": 1, "stopped": 1, "not_listening": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to own files as somebody else")
def test_a_port_of_somebody_else_is_not_asked(tmp_path: Path) -> None:
    """A state file leads the exporter to sockets of the file's owner only."""
    with serving_rank(tmp_path, 0) as rank, exporter(*ONLY_STATE, f"--state.directory={tmp_path}") as node:
        assert results(page_of(node)) == {"merged": 1}
        os.chown(rank.writer.path, 65534, 65534)
        assert results(page_of(node)) == {"not_listening": 1}
        assert node.get(node.url.replace("/metrics", "/sd"))[1] == "[]\n"


def test_sockets_that_listen_are_found_with_their_owners() -> None:
    """On loopback, on every address and by IPv6; a connection is none."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("0.0.0.0", 0)) as every,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
        socket.create_connection(one.getsockname()) as client,
    ):
        found = listeners(PROC)
        expected = ((one, "127.0.0.1"), (every, "0.0.0.0"), (six, "::1"), (client, None))
        assert [found.get((each.getsockname()[1], os.geteuid())) for each, _ in expected] == [a for _, a in expected]
    assert listeners(Path("/nonexistent")) == {}


def targets(text: str) -> list[tuple[str, str]]:
    """Return target and rank of each group."""
    groups: list[dict[str, Any]] = json.loads(text)
    return [(group["targets"][0], group["labels"]["__meta_laggard_rank"]) for group in groups]


def test_targets_are_called_as_the_exporter_is(tmp_path: Path) -> None:
    """Who asks on the node itself is told of every rank; who asks from elsewhere of those that listen to it."""
    with (
        exporter(*ONLY_STATE, f"--state.directory={tmp_path}") as node,
        serving_rank(tmp_path, 0) as near,
        socket.create_server(("0.0.0.0", 0)) as far,
        live_rank(tmp_path, fresh(rank=1, metrics_port=far.getsockname()[1], host='n"1')),
    ):
        url = node.url.replace("/metrics", "/sd")
        headers, text = node.get(url)
        assert headers["Content-Type"] == "application/json"
        ports = near.port, far.getsockname()[1]
        assert targets(text) == [(f"127.0.0.1:{ports[0]}", "0"), (f"127.0.0.1:{ports[1]}", "1")]
        assert json.loads(text)[1]["labels"] == {
            "__meta_laggard_run": "run-1",
            "__meta_laggard_rank": "1",
            "__meta_laggard_local_rank": "1",
            "__meta_laggard_host": 'n"1',
            "__meta_laggard_workload": "train.py",
        }
        for name, called in (("node7:9495", "node7"), ("[2001:db8::1]:9495", "[2001:db8::1]")):
            assert targets(node.get(url, Host=name)[1]) == [(f"{called}:{ports[1]}", "1")]
        with pytest.raises(urllib.error.HTTPError, match="400"):
            node.get(url, Host="[")
        with exporter(*ONLY_STATE, f"--state.directory={tmp_path}", "--sd.address=node8") as other:
            assert targets(other.get(other.url.replace("/metrics", "/sd"))[1]) == [(f"node8:{ports[1]}", "1")]


def test_a_file_of_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is there at the start, follows the ranks, is never seen half written, and has no targets at the end."""
    monkeypatch.setattr(discovery, "SECONDS", 0.05)
    path = tmp_path / "sd" / "ranks.json"
    path.parent.mkdir()
    file = TargetFile(path, Targets(Endpoints(tmp_path, PROC, SYS)), "localhost")
    before = os.umask(0o077)
    file.start()
    os.umask(before)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("[]\n", 0o644)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        live_rank(tmp_path, fresh(rank=5, metrics_port=server.getsockname()[1])),
    ):
        until(lambda: targets(path.read_text()) == [(f"127.0.0.1:{server.getsockname()[1]}", "5")])
        written = path.stat().st_mtime_ns
        time.sleep(0.2)
        assert path.stat().st_mtime_ns == written
        file.close()
        assert path.read_text() == "[]\n"
        time.sleep(0.2)
    assert path.read_text() == "[]\n"
    assert list(path.parent.iterdir()) == [path]


def test_the_exporter_keeps_the_file(tmp_path: Path) -> None:
    """With --sd.file the exporter writes it and empties it at its end; one that cannot be written ends it at once."""
    path = tmp_path / "ranks.json"
    arguments = (*ONLY_STATE, f"--state.directory={tmp_path}", f"--sd.file={path}")
    with serving_rank(tmp_path, 0), exporter(*arguments) as node:
        assert [rank for _, rank in targets(path.read_text())] == ["0"]
        assert node.stop() == 0
    assert path.read_text() == "[]\n"
    with pytest.raises(AssertionError, match=r"--sd\.file '/nonexistent/a\.json': No such file"):
        exporter(*ONLY_STATE, "--sd.file=/nonexistent/a.json").__enter__()


def test_bad_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """A host that is none, a file that Prometheus would not read, and a path that is taken are one line each."""
    assert {ranks.METRICS_PATH, ranks.TARGETS_PATH} == argument_types.RESERVED_PATHS
    for flag, hint in (
        ("--sd.address=node:9495", "ranks have their own ports"),
        ("--sd.file=targets", "end in .json"),
        ("--web.telemetry-path=/sd", "cannot be served"),
    ):
        with pytest.raises(SystemExit, match="2"):
            flags.parse([flag], {})
        assert hint in capsys.readouterr().err


# --- a real Prometheus ---

_JOBS = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
  - {{job_name: node, metrics_path: /ranks/metrics, static_configs: [{{targets: ["{node}"]}}]}}
  - {{job_name: http, http_sd_configs: [{{url: "http://{node}/sd", refresh_interval: 500ms}}]}}
  - {{job_name: file, file_sd_configs: [{{files: ["{file}"]}}]}}
  - {{job_name: direct, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}
"""


@contextlib.contextmanager
def prometheus(folder: Path, configuration: str) -> Generator[str, None, None]:
    """Run a Prometheus; yield its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    (folder / "prometheus.yml").write_text(configuration)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait(TIMEOUT)


def series(server: str, job: str) -> frozenset[tuple[tuple[str, str], ...]]:
    """Return the labels of what a job's targets show now, without those of the target."""
    query = urllib.parse.urlencode({"query": f'{{job="{job}",__name__=~"training_.*"}}'})
    try:
        with urllib.request.urlopen(f"{server}/api/v1/query?{query}", timeout=TIMEOUT) as answer:
            found: Iterable[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return frozenset()
    return frozenset(
        tuple(sorted(pair for pair in each["metric"].items() if pair[0] not in {"job", "instance"})) for each in found
    )


def ranks_of(found: frozenset[tuple[tuple[str, str], ...]]) -> set[str]:
    """Return the ranks that there are."""
    return {dict(labels)["training_rank"] for labels in found}


def test_prometheus_finds_ranks_by_their_node(tmp_path: Path) -> None:
    """By one target a node, http_sd and file_sd the series are those of a direct scrape; a rank goes, another comes."""
    state, file = tmp_path / "state", tmp_path / "ranks.json"
    arguments = (*ONLY_STATE, f"--state.directory={state}", f"--sd.file={file}")
    ways = ("node", "http", "file")
    with serving_rank(state, 0) as direct, contextlib.ExitStack() as stack:
        with serving_rank(state, 1):
            node = urllib.parse.urlsplit(stack.enter_context(exporter(*arguments)).url).netloc
            configuration = _JOBS.format(node=node, file=file, port=direct.port)
            server = stack.enter_context(prometheus(tmp_path, configuration))
            until(lambda: all(ranks_of(series(server, way)) == {"0", "1"} for way in ways))
            until(lambda: ranks_of(series(server, "direct")) == {"0"})
            first = series(server, "direct")
            assert len(first) == 7
            for way in ways:
                found = series(server, way)
                assert len(found) == 2 * 7
                assert {labels for labels in found if dict(labels)["training_rank"] == "0"} == first
        # At once, by stale markers: without them rank 1 would be there for five more minutes.
        with serving_rank(state, 2):
            until(lambda: all(ranks_of(series(server, way)) == {"0", "2"} for way in ways))
