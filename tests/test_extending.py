"""The worked examples of docs/extending.md are what stands there, and do what the page says."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from dashboards.encoding import encode
from laggard import _process
from laggard._hooks import HOOKS
from laggard._partition import StepPartition
from laggard.shared.phases import Phase
from laggard_cli.demo.servers import free_ports
from laggard_cli.rules.render import render
from laggard_exporter.collection import UnsupportedError
from tests.dashboards.test_schema import _check, modules  # noqa: F401 - a fixture
from tests.rules import lint
from tests.rules.pack import RULES, Rule, selectors

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "extending"
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def example(name: str) -> ModuleType:
    """Import an example."""
    spec = importlib.util.spec_from_file_location(f"extending_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_examples() -> None:
    """Each example stands in the page to the letter, and no other code that names a file."""
    shown = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    files = [path for path in sorted(EXAMPLES.iterdir()) if path.is_file()]
    assert dict(shown) == {f"examples/extending/{path.name}": path.read_text(encoding="utf-8") for path in files}


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_process.Process]:
    """This process, instrumented with the example among the hooks; its drain never starts."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(_process, "HOOKS", (*HOOKS, example("hook").ClippingHook))
    _process.instrument()
    current = _process.current()
    assert current is not None
    current._settled = True
    yield current
    _process.uninstrument()


@pytest.mark.timed
def test_the_hook_measures_its_part_of_a_step(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The time of a slow clipping is the optimizer's in each step, and nothing of the hook is left afterwards."""

    def slow_clip(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return clip(*args, **kwargs)

    clip = nn.utils.clip_grad_norm_
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", slow_clip)
    process: _process.Process = request.getfixturevalue("hooked")
    assert nn.utils.clip_grad_norm_ is not slow_clip
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    steps = StepPartition(warmup_steps=0).feed(process.recorder.drain())
    assert len(steps) == 3
    for step in steps:
        assert step.phases[Phase.OPTIMIZER] >= 20_000_000
        assert step.phases[Phase.OTHER] < 20_000_000
    _process.uninstrument()
    assert nn.utils.clip_grad_norm_ is slow_clip


def test_the_collector_is_on_the_page_of_an_exporter(tmp_path: Path) -> None:
    """Once it stands in the table it has a flag, and a scrape has its metrics with the values of procfs."""
    (tmp_path / "sys" / "fs").mkdir(parents=True)
    (tmp_path / "sys" / "fs" / "file-nr").write_text("4096\t0\t524288\n", encoding="ascii")
    (port,) = free_ports(1)
    program = (
        "from collector import ENTRY; from laggard_exporter.collectors import COLLECTORS;"
        "from laggard_exporter.main import main; COLLECTORS['descriptors'] = ENTRY; main()"
    )
    flags = ["--collector.disable-defaults", "--collector.descriptors", f"--path.procfs={tmp_path}"]
    command = [sys.executable, "-c", program, *flags, f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=EXAMPLES) as exporter:
        try:
            text = scrape(f"http://127.0.0.1:{port}/metrics")
        finally:
            exporter.terminate()
    host = r'\{host_name="[^"]+"\}'
    assert re.search(rf"^host_file_descriptors{host} 4096\.0$", text, re.MULTILINE)
    assert re.search(rf"^host_file_descriptors_limit{host} 524288\.0$", text, re.MULTILINE)
    assert 'laggard_exporter_collector_success{collector="descriptors"} 1.0' in text


def xe(root: Path, address: str, **files: int | None) -> None:
    """Make a GPU that the driver xe shows; a file without a value is one whose reading never ends."""
    device = root / "bus/pci/drivers/xe" / address
    for name, value in files.items():
        path = device / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if value is None:
            os.mkfifo(path)
        else:
            path.write_text(f"{value}\n", encoding="ascii")


def test_the_backend_reads_gpus_of_another_vendor(tmp_path: Path) -> None:
    """A GPU is read in base units under every vendor's names, one that hangs is down, what is absent is absent."""
    xe(tmp_path, "0000:03:00.0", tile0__gt0__freq0__act_freq=2400, hwmon__hwmon3__energy1_input=2_500_000)
    xe(tmp_path, "0000:04:00.0", tile0__gt0__freq0__act_freq=None)
    program = (
        "from gpu_backend import ENTRY; from laggard_exporter.collectors import COLLECTORS;"
        "from laggard_exporter.main import main; COLLECTORS['xe'] = ENTRY; main()"
    )
    (port,) = free_ports(1)
    flags = ["--collector.disable-defaults", "--collector.xe", f"--path.sysfs={tmp_path}", "--host.name=h"]
    command = [sys.executable, "-c", program, *flags, f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=EXAMPLES) as exporter:
        try:
            text = scrape(f"http://127.0.0.1:{port}/metrics")
        finally:
            exporter.terminate()
    said = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("gpu_"))
    working, hanging = 'uuid="PCI-h-0000:03:00.0"', 'uuid="PCI-h-0000:04:00.0"'
    expected = {
        f"gpu_up{{{working}}}": "1.0",
        f"gpu_up{{{hanging}}}": "0.0",
        f'gpu_clock_hertz{{clock="sm",{working}}}': "2.4e+09",
        f"gpu_energy_joules_total{{{working}}}": "2.5",
        'gpu_devices{source="xe"}': "2.0",
    }
    assert {series: value for series, value in said.items() if "_info{" not in series} == expected
    assert 'laggard_exporter_xe_status{host_name="h",status="available"} 1.0' in text
    assert 'laggard_exporter_xe_call_timeouts_total{function="tile0/gt0/freq0/act_freq"} 1.0' in text


def scrape(url: str) -> str:
    """Return a page, once the server is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
        time.sleep(0.1)
    pytest.fail(f"{url} does not answer")


def test_the_collector_abstains(tmp_path: Path) -> None:
    """Where the kernel has no such file, nothing is said, and that is no failure."""
    collector = example("collector").DescriptorsCollector(tmp_path, "h")
    with pytest.raises(UnsupportedError, match="file-nr does not exist"):
        list(collector.collect())


def test_the_rule_passes_what_the_pack_passes(tmp_path: Path) -> None:
    """Beside the pack it loads, in every profile; its unit test passes; the lints of the pack find nothing."""
    promtool = shutil.which("promtool")
    assert promtool is not None
    pack = tmp_path / "rules"
    shutil.copytree(RULES, pack)
    for path in EXAMPLES.glob("*.yml"):
        shutil.copy(path, tmp_path if path.name.startswith("test-") else pack)
        shutil.copy(path, tmp_path)
    files = [pack / "thresholds-descriptors.yml", pack / "alert-descriptors.yml"]
    command = [promtool, "check", "rules", "--lint=all", "--lint-fatal", *map(str, files)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    subprocess.run([promtool, "test", "rules", str(tmp_path / "test-descriptors.yml")], check=True, timeout=60)

    fast = yaml.safe_load(render("fast", folder=pack)["alert-descriptors.yml"])
    (alert,) = fast["groups"][0]["rules"]
    assert (fast["groups"][0]["interval"], alert["for"]) == ("8s", "16s")
    rule = Rule("alert-descriptors.yml", "laggard-alert-descriptors", alert["alert"], alert["expr"], is_alert=True)
    assert [*lint.can_be_false(rule), *lint.picks(rule), *lint.counters(rule), *lint.units(rule)] == []


def test_the_dashboard_builds() -> None:
    """It has the form of the others, and its queries read what the collector and the rule give."""
    board = json.loads(encode(example("dashboard").DESCRIPTORS.build()))
    assert (board["uid"], board["tags"], board["timezone"]) == ("laggard-descriptors", ["laggard"], "utc")
    (panel,) = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert panel["gridPos"]["w"] == 24
    read = {selector.name for target in panel["targets"] for selector in selectors(target["expr"])}
    assert read == {"host_file_descriptors", "host_file_descriptors_limit", "laggard_threshold"}


@pytest.mark.xdist_group("npm")
def test_the_dashboard_is_what_grafana_says_that_dashboards_are(
    modules: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    """Its properties have the names and values of Grafana's own types."""
    board = tmp_path / "laggard-descriptors.json"
    board.write_text(encode(example("dashboard").DESCRIPTORS.build()), encoding="utf-8")
    assert _check(modules, board) == []
