"""The systemd unit of the Collector."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from laggard_cli.demo.servers import free_ports
from tests.collector.support import COLLECTOR, CONFIGURATIONS, ROOT, agent, collector, named
from tests.deploy import booted
from tests.exporter.support import TIMEOUT
from tests.support.waiting import until

UNIT = ROOT / "deploy" / "systemd" / "otelcol-laggard@.service"


@pytest.mark.parametrize("role", ["agent", "gateway"])
def test_it_fits_the_configuration(role: str) -> None:
    """The folder that systemd makes is the one of the queue, and the memory is more than the configuration takes."""
    unit, configuration = UNIT.read_text(), (CONFIGURATIONS / f"{role}.yaml").read_text()
    (folder,) = re.findall(r"^StateDirectory=(.+)$", unit, re.MULTILINE)
    assert f"${{env:STATE_DIR:-/var/lib/{folder.replace('%i', role)}}}" in configuration
    (limit,) = re.findall(r"^MemoryMax=(\d+)G$", unit, re.MULTILINE)
    (taken,) = re.findall(r"MEMORY_MIB:-(\d+)", configuration)
    assert int(limit) * 1024 > int(taken) * 1.25


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="apt-get install systemd")
def test_systemd_is_content(tmp_path: Path) -> None:
    """Systemd finds no mistake, and rates what the service could do to the host as small."""
    program = COLLECTOR if COLLECTOR.exists() else Path("/bin/true")
    unit = tmp_path / "otelcol-laggard@agent.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/otelcol-laggard", str(program)))
    for command in (["verify"], ["security", "--offline=true", "--threshold=15"]):
        result = subprocess.run(
            ["systemd-analyze", *command, str(unit)], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if "unrecognized option" in result.stderr or "Failed to connect" in result.stderr:
            pytest.skip(f"systemd-analyze {command[0]} does not work here")
        assert (result.returncode, result.stderr) == (0, ""), result.stdout


@pytest.mark.skipif(booted.missing() != "", reason=booted.missing())
def test_systemd_runs_it(tmp_path: Path) -> None:
    """A real systemd runs the unit as it is, without rights; the agent takes data and keeps it in its folder."""
    program, name = collector(), "otelcol-laggard@agent.service"
    drop_ins = tmp_path / f"{name}.d"
    drop_ins.mkdir()
    tmp_path.chmod(0o755)
    shutil.copy(UNIT, tmp_path)
    ports = named(free_ports(6), "grpc", "http", "health", "self", "exporter", "gateway")
    _, variables = agent(tmp_path, ports, [ports["gateway"]])
    del variables["STATE_DIR"]
    # Where the program and its configuration are, which the unit hides.
    (drop_ins / "test.conf").write_text(
        f"[Service]\nExecStart=\nExecStart={program} --config {CONFIGURATIONS}/%i.yaml\n"
        f"ProtectHome=tmpfs\nBindReadOnlyPaths={ROOT}\n"
        + "".join(f'Environment="{key}={value}"\n' for key, value in variables.items())
    )
    point = {"timeUnixNano": "1", "asInt": "1"}
    metric = {"name": "training.steps", "gauge": {"dataPoints": [point]}}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
    with booted.booted(tmp_path, name) as machine:
        machine.wait_until_active()
        until(lambda: push(ports["http"], body), "the agent takes nothing")
        pid = machine.main_pid()
        fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        queue = Path("/proc", str(pid), "root", "var/lib/otelcol-laggard/agent")
        assert [path.stat().st_uid for path in queue.iterdir()] == [int(fields["Uid"].split()[0])]
        machine.control("stop", name)
        ended = machine.control("show", "--property=ActiveState,Result", name)
    assert 61184 <= int(fields["Uid"].split()[0]) <= 65519, "the range of dynamic users"
    assert {fields[each] for each in ("CapEff", "CapBnd", "CapPrm")} == {f"{0:016x}"}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert set(ended.split()) == {"ActiveState=inactive", "Result=success"}


def push(port: int, body: bytes) -> bool:
    """Return whether the agent takes this."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/metrics", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status == 200
    except OSError:
        return False
