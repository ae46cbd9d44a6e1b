"""The command as a process: scraped over HTTP, driven by real files and a fake driver, ended by signals."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared.names import clip_name
from laggard.version import __version__
from tests.exporter.support import (
    FACTS,
    TIMEOUT,
    Exporter,
    dead_file,
    exporter,
    fresh,
    live_rank,
    open_metrics,
    parse,
    promtool_check,
    running,
    series_name,
    starting_with,
)
from tests.fake_nvml.fake import Scenario
from tests.support.waiting import until

#: Every way in which a name could break out of its quotes, in the 128 bytes that a name may have.
HOSTILE_RUN = '"} 1\n# TYPE up gauge\nup{a="\\\\n\\"\r\x00\x1b[2J,\u2028é🚀' + "長" * 26 + "ab"


def rank_up(run: str, rank: int) -> str:
    """Return the series that says whether a rank is up."""
    return series_name("training_process_up", {"training_run": run, "training_rank": str(rank)}.items())


def test_a_node(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """GPUs and ranks come together in one scrape; what changes on the node is in the next one and leaves nothing."""
    ranks = tmp_path / "ranks"
    only = ("--collector.disable-defaults", "--collector.nvml", "--collector.state")
    with exporter(*only, f"--state.directory={ranks}", **scenario.environment(fake_nvml)) as node:
        samples = node.scrape()
        assert samples["laggard_exporter_state_directory_exists"] == 0
        assert starting_with(samples, "training_") == {}
        with live_rank(ranks, fresh()) as process:
            path = next(ranks.iterdir())
            samples = node.scrape()
            assert samples[rank_up("run-1", 3)] == 1
            assert samples['gpu_up{uuid="GPU-00000000-0000-0000-0000-000000000000"}'] == 1
            process.kill()
            process.wait(TIMEOUT)
            scenario.write("0 * !15")
            samples = node.scrape()
            assert samples[rank_up("run-1", 3)] == 0
            assert samples['gpu_up{uuid="GPU-00000000-0000-0000-0000-000000000000"}'] == 0
        path.unlink()
        samples = node.scrape()
        assert starting_with(samples, "training_") == {}
        assert starting_with(samples, "laggard_exporter_collector_success") == {
            'laggard_exporter_collector_success{collector="nvml"}': 1,
            'laggard_exporter_collector_success{collector="state"}': 1,
        }


def test_only_our_own_metrics(tmp_path: Path) -> None:
    """A node without GPUs and ranks serves the exporter's and the host's metrics, none of the Python process."""
    with exporter(f"--state.directory={tmp_path}", "--host.name=node-1", LD_LIBRARY_PATH=str(tmp_path)) as node:
        samples = node.scrape()
    other = {series for series in samples if not series.startswith(("laggard_exporter_", "host_"))}
    assert other <= {'gpu_devices{source="pci"}'}
    assert samples['laggard_exporter_nvml_status{host_name="node-1",status="library_not_found"}'] == 1


def test_switched_off_collectors(tmp_path: Path) -> None:
    """A collector that is switched off has no series, not even of its health."""
    with exporter("--collector.disable-defaults", f"--state.directory={tmp_path}") as node:
        assert node.scrape() == {f'laggard_exporter_build_info{{version="{__version__}"}}': 1}


def test_promtool_is_content(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """Prometheus' own check finds nothing in a full scrape, hostile names included."""
    dead_file(tmp_path, fresh(run=HOSTILE_RUN, host=HOSTILE_RUN))
    with (
        live_rank(tmp_path, fresh()),
        exporter(
            f"--state.directory={tmp_path}", "--collector.nvml.details", **scenario.environment(fake_nvml)
        ) as node,
    ):
        _, text = node.get()
    assert 'gpu_pcie_errors_total{error="lane"' in text
    assert promtool_check(text) == ""


def test_hostile_names(tmp_path: Path) -> None:
    """A name with quotes and other scripts is the same after a scrape, in both formats; a line break is a blank."""
    assert len(HOSTILE_RUN.encode()) == 128
    dead_file(tmp_path, fresh(run=HOSTILE_RUN, host=HOSTILE_RUN))
    with exporter("--no-collector.nvml", f"--state.directory={tmp_path}") as node:
        plain, text = node.get()
        typed, open_text = node.get(Accept="application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert plain["Content-Type"].startswith("text/plain; version=0.0.4")
    assert typed["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    up = rank_up(clip_name(HOSTILE_RUN), 3)
    assert starting_with(parse(text), "training_process_up") == {up: 0}
    (family,) = (family for family in open_metrics(open_text) if family.name == "training_process_up")
    assert [(series_name(sample.name, sample.labels.items()), sample.value) for sample in family.samples] == [(up, 0)]


def test_pages(tmp_path: Path) -> None:
    """Beside the metrics there are a landing page and a health page; other paths and methods are refused."""
    with exporter("--no-collector.nvml", "--web.telemetry-path=/m", f"--state.directory={tmp_path}") as node:
        root = node.url.removesuffix("/m")
        headers, landing = node.get(f"{root}/")
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert '<a href="/m">' in landing
        assert f"laggard-exporter {__version__}" in landing
        assert node.get(f"{root}/-/healthy")[1] == "laggard-exporter is healthy.\n"
        for path, method, code in (("/metrics", "GET", 404), ("/m", "POST", 405), ("/", "DELETE", 405)):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(urllib.request.Request(root + path, method=method), timeout=TIMEOUT)
            assert refusal.value.code == code
            refusal.value.close()
        with urllib.request.urlopen(urllib.request.Request(node.url, method="HEAD"), timeout=TIMEOUT) as response:
            assert (response.status, response.read()) == (200, b"")


def test_compression(tmp_path: Path) -> None:
    """A client that takes gzip gets it."""
    with exporter("--no-collector.nvml", f"--state.directory={tmp_path}") as node:
        request = urllib.request.Request(node.url, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            text = gzip.decompress(response.read()).decode()
    assert set(parse(text)) >= {'laggard_exporter_collector_success{collector="state"}'}


def test_a_gpu_that_hangs(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """The scrape in which a GPU begins to hang is answered, says so, and brings the other GPU and the ranks."""
    dead_file(tmp_path, fresh())
    with exporter(f"--state.directory={tmp_path}", **scenario.environment(fake_nvml)) as node:
        node.scrape()
        scenario.write("0 nvmlDeviceGetUtilizationRates:delay 60000")
        for limit in (6, 2):
            started = time.monotonic()
            samples = node.scrape()
            assert time.monotonic() - started < limit
            assert samples['laggard_exporter_collector_success{collector="nvml"}'] == 0
            assert samples['gpu_up{uuid="GPU-00000000-0000-0000-0000-000000000000"}'] == 0
            assert samples['gpu_utilization_ratio{uuid="GPU-11111111-1111-1111-1111-111111111111"}'] == 0
            assert samples['laggard_exporter_collector_success{collector="state"}'] == 1
            assert 'training_process_up{training_rank="3",training_run="run-1"}' in starting_with(samples, "training_")
        assert node.stop() == 0


def test_no_process_is_left(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """Under a call that hangs the exporter is healthy, and when it is killed the process of NVML ends with it."""
    with exporter(f"--state.directory={tmp_path}", **scenario.environment(fake_nvml)) as node:
        node.scrape()
        (child,) = children(node.process.pid)
        scenario.write("system gpus 2", "0 nvmlDeviceGetUtilizationRates:delay 60000")
        with pytest.raises(TimeoutError):
            node.get(timeout=0.3)
        started = time.monotonic()
        _, text = node.get(node.url.replace("/metrics", "/-/healthy"))
        assert text == "laggard-exporter is healthy.\n"
        assert time.monotonic() - started < 1, "who asks for health waits for no driver"
        node.stop(signal.SIGKILL)
        for _ in range(200):
            if not Path(f"/proc/{child}").exists():
                break
            time.sleep(0.01)
        assert not Path(f"/proc/{child}").exists()


def test_the_driver_is_let_go(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """SIGUSR1 ends whatever has the driver open without a scrape, SIGUSR2 takes it up again; the rest goes on."""
    arguments = ("--collector.disable-defaults", "--collector.nvml", "--collector.state")
    with exporter(*arguments, f"--state.directory={tmp_path}", **scenario.environment(fake_nvml)) as node:
        up = 'gpu_up{uuid="GPU-00000000-0000-0000-0000-000000000000"}'
        assert node.scrape()[up] == 1
        (child,) = children(node.process.pid)
        # As systemctl kill does: to every process of the service.
        os.kill(child, signal.SIGUSR1)
        node.process.send_signal(signal.SIGUSR1)
        until(lambda: not children(node.process.pid))
        assert "libnvidia-ml" not in Path(f"/proc/{node.process.pid}/maps").read_text()
        samples = node.scrape()
        assert samples['laggard_exporter_collector_success{collector="nvml"}'] == 1
        assert samples["laggard_exporter_nvml_available"] == 0
        assert samples["laggard_exporter_state_directory_exists"] == 1
        assert starting_with(samples, "gpu_") == starting_with(samples, 'gpu_devices{source="pci')
        assert children(node.process.pid) == []
        node.process.send_signal(signal.SIGUSR2)
        until(lambda: bool(children(node.process.pid)))
        assert node.scrape()[up] == 1
        assert node.stop() == 0


def children(pid: int) -> list[int]:
    """Return the process numbers of the children."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end(tmp_path: Path, number: int) -> None:
    """SIGTERM and SIGINT end the process with exit code 0, and nothing but the log's lines was written."""
    with exporter("--collector.disable-defaults", "--collector.state", f"--state.directory={tmp_path}") as node:
        node.scrape()
        assert node.stop(number) == 0
        assert node.process.stderr is not None
        assert node.process.stderr.read() == ""


def test_a_silent_client(tmp_path: Path) -> None:
    """A client that connects and says nothing keeps no other client waiting."""
    with exporter("--no-collector.nvml", f"--state.directory={tmp_path}") as node:
        port = int(node.url.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port), TIMEOUT):
            assert node.scrape()


def test_several_addresses(tmp_path: Path) -> None:
    """Each address that is given is served."""
    with exporter("--no-collector.nvml", "--web.listen-address=localhost:0", f"--state.directory={tmp_path}") as node:
        first, second = node.url, node.next_url()
        assert first != second
        assert parse(node.get(first)[1]).keys() == parse(node.get(second)[1]).keys()


def test_the_exporter_stands_alone() -> None:
    """The exporter runs on a node without torch, and without the command line's packages."""
    code = "import sys, laggard_exporter.main; print({name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    assert [name for name in ("torch", "numpy", "laggard_cli", "httpx", "rich") if f"'{name}'" in loaded] == []
    assert "'laggard_exporter'" in loaded


def test_without_its_extra_it_says_what_to_install() -> None:
    """One line, and exit code 2."""
    code = "import sys; sys.modules['bcrypt'] = None; from laggard_exporter.program import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    line = "laggard-exporter: error: it needs the package bcrypt: pip install 'laggard[exporter]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


#: Becomes nobody after the imports: a checkout below a home is closed to others.
AS_NOBODY = """
import codecs, os, shutil, sys
from laggard_exporter.main import main
for name in ("ascii", "idna"):
    codecs.lookup(name)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_user_without_rights() -> None:
    """A user without rights sees the ranks of others and their processes, and removes nothing of theirs."""
    with tempfile.TemporaryDirectory() as folder, live_rank(Path(folder) / "ranks", fresh()) as rank:
        Path(folder).chmod(0o755)
        dead_file(Path(folder) / "ranks", replace(FACTS, rank=5, start_boottime_ns=1))
        command = [sys.executable, "-c", AS_NOBODY, "--web.listen-address=127.0.0.1:0", "--no-collector.nvml"]
        with running([*command, f"--state.directory={folder}/ranks"], stderr=subprocess.PIPE) as process:
            node = Exporter(process)
            samples = node.scrape()
            assert Path(f"/proc/{process.pid}").stat().st_uid == 65534
            assert samples[rank_up("run-1", 3)] == 1
            assert samples['training_process_cpus_allowed{training_rank="3",training_run="run-1"}'] >= 1
            success = starting_with(samples, "laggard_exporter_collector_success")
            assert {series: value for series, value in success.items() if not value} == {}
            assert len(list(Path(folder, "ranks").iterdir())) == 2
            assert node.stop() == 0
        assert rank.poll() is None
