"""The systemd unit of the exporter."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from laggard.shared import dumps, statefile
from laggard.shared.phases import Phase
from laggard_exporter import flags
from tests.deploy import booted, confined
from tests.exporter.support import (
    EXPORTER,
    REPOSITORY,
    TIMEOUT,
    Exporter,
    fresh,
    live_rank,
    parse,
    running,
    starting_with,
)
from tests.fake_nvml.fake import Scenario, build

SD_FILE = "--sd.file=/run/laggard-exporter/ranks.json"
UNIT = REPOSITORY / "deploy" / "systemd" / "laggard-exporter.service"


def settings() -> dict[str, list[str]]:
    """Return the values of each setting of the section Service."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_it_runs_without_rights() -> None:
    """The service is nobody, keeps one capability, and sees no device but the GPUs' and the kernel's log."""
    found = settings()
    assert found["DynamicUser"] == found["NoNewPrivileges"] == found["RestrictNamespaces"] == ["yes"]
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == ["CAP_SYSLOG"]
    assert found["ProtectSystem"] == ["strict"]
    assert found["DevicePolicy"] == ["closed"]
    assert {device.split()[0] for device in found["DeviceAllow"]} == {
        "char-nvidia",
        "char-nvidia-frontend",
        "char-nvidia-nvswitch",
        "char-nvidia-caps",
        "/dev/kmsg",
    }


def test_it_can_see_what_it_must() -> None:
    """No setting hides what the collectors read: GPUs, the kernel's log, other users' processes, shared memory."""
    assert not {"PrivateDevices", "ProtectKernelLogs", "ProtectProc", "ProcSubset", "PrivateUsers"} & settings().keys()


def test_its_flags_exist() -> None:
    """The flags that the unit names are flags of the command."""
    named = set(re.findall(r"--[a-z.-]+", UNIT.read_text())) - {"--now"}
    known = {option for action in flags.parser({})._actions for option in action.option_strings}
    assert named == {"--web.config.file", "--sd.file"}
    assert named <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="apt-get install systemd")
def test_systemd_is_content(tmp_path: Path) -> None:
    """Systemd finds no mistake, and rates what the service could do to the host as small."""
    unit = tmp_path / UNIT.name
    # The command itself may be installed elsewhere.
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/laggard-exporter", str(EXPORTER)))
    for command in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        result = subprocess.run(
            ["systemd-analyze", *command, str(unit)], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if "unrecognized option" in result.stderr or "Failed to connect" in result.stderr:
            pytest.skip(f"systemd-analyze {command[0]} does not work here")
        assert (result.returncode, result.stderr) == (0, "")


def missing() -> str:
    """Return what the machine lacks to confine a process, empty when nothing."""
    for tool in ("unshare", "setpriv", "systemd-analyze"):
        if shutil.which(tool) is None:
            return f"{tool} is missing: apt-get install util-linux systemd"
    if not confined.NUMBERS.exists() or not Path("/srv").is_dir():
        return "this is no Debian of x86_64"
    probe = ["unshare", "--mount", "mount", "--bind", "/srv", "/srv"]
    works = subprocess.run(probe, capture_output=True, timeout=TIMEOUT, check=False).returncode == 0
    return "" if works else "no right to change mounts: needs root"


@pytest.mark.skipif(missing() != "", reason=missing())
def test_it_works_confined(tmp_path: Path) -> None:
    """With the unit's rights, system calls and a file system that is read-only, GPUs, ranks and host are there."""
    found = settings()
    build(tmp_path)
    Scenario(tmp_path / "scenario")
    inside = {"LD_LIBRARY_PATH": "/srv", "FAKE_NVML_SCENARIO": "/srv/scenario"}
    arguments = [str(EXPORTER), "--web.listen-address=127.0.0.1:0", "--state.directory=/srv/ranks"]
    filters, families = found["SystemCallFilter"], found["RestrictAddressFamilies"][0].split()
    facts = fresh()
    word = statefile.pack(Phase.OTHER, facts.start_boottime_ns)
    dump = dumps.file_name(facts.run, facts.rank, facts.start_boottime_ns, 0, word)
    with live_rank(tmp_path / "ranks", facts):
        (tmp_path / "ranks" / dump).write_text('{"entries": []}')
        command = confined.command(tmp_path, filters, families, arguments)
        tmp_path.chmod(0o755)
        with running(command, stderr=subprocess.PIPE, cwd=REPOSITORY, env={**os.environ, **inside}) as process:
            node = Exporter(process)
            samples = node.scrape()
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert node.stop() == 0
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert fields["Uid"].split() == [str(confined.user())] * 4
    assert {fields[name] for name in ("CapEff", "CapBnd", "CapPrm")} == {f"{1 << 34:016x}"}, "CAP_SYSLOG alone"
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    failed = {series for series in starting_with(samples, "laggard_exporter_collector_success") if not samples[series]}
    assert failed == set()
    assert list(starting_with(samples, "gpu_up").values()) == [1, 1]
    assert samples['training_process_up{training_rank="3",training_run="run-1"}'] == 1
    assert samples["laggard_exporter_nvml_available"] == 1
    assert samples['laggard_exporter_hang_dumps{result="read"}'] == 1


@pytest.mark.skipif(booted.missing() != "", reason=booted.missing())
def test_systemd_runs_it(tmp_path: Path) -> None:
    """A real systemd starts the unit as it is, as a user of its own, starts it again when it ends, and stops it."""
    units, files = tmp_path / "units", tmp_path / "files"
    drop_ins = units / f"{UNIT.name}.d"
    for folder in (drop_ins, files):
        folder.mkdir(parents=True)
    tmp_path.chmod(0o755)
    build(files)
    scenario = Scenario(files / "scenario")
    shutil.copy(UNIT, units)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    variables = {
        **scenario.environment(files / "libnvidia-ml.so.1"),
        "LAGGARD_EXPORTER_FLAGS": f"--web.listen-address={address} --state.directory={files / 'ranks'} {SD_FILE}",
    }
    # Where the command, its interpreter and the files of this test are, which the unit hides.
    (drop_ins / "test.conf").write_text(
        f"[Service]\nExecStart=\nExecStart={EXPORTER} $LAGGARD_EXPORTER_FLAGS\nProtectHome=tmpfs\nRestartSec=0\n"
        + "".join(f"BindReadOnlyPaths={path}\n" for path in (REPOSITORY, sys.prefix, sys.base_prefix, files))
        + "".join(f'Environment="{name}={value}"\n' for name, value in variables.items())
    )
    url = f"http://{address}/metrics"
    with live_rank(files / "ranks", fresh()), booted.booted(units, UNIT.name) as machine:
        machine.wait_until_active()
        samples = scraped(url)
        pid = machine.main_pid()
        targets = Path(f"/proc/{pid}/root") / SD_FILE.partition("=/")[2]
        assert (targets.read_text(), stat.S_IMODE(targets.stat().st_mode)) == ("[]\n", 0o644)
        fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        os.kill(pid, signal.SIGKILL)
        assert scraped(url)["laggard_exporter_nvml_available"] == 1, "it is started again"
        assert machine.main_pid() != pid
        assert machine.control("show", "--property=NRestarts", "--value", UNIT.name) == "1\n"
        machine.control("stop", UNIT.name)
        ended = machine.control("show", "--property=ActiveState,Result", UNIT.name)
    assert 61184 <= int(fields["Uid"].split()[0]) <= 65519, "the range of dynamic users"
    assert {fields[name] for name in ("CapEff", "CapBnd", "CapPrm")} == {f"{1 << 34:016x}"}, "CAP_SYSLOG alone"
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    failed = {series for series in starting_with(samples, "laggard_exporter_collector_success") if not samples[series]}
    assert failed == set()
    assert list(starting_with(samples, "gpu_up").values()) == [1, 1]
    assert samples["laggard_exporter_kernel_log_readable"] == Path("/dev/kmsg").exists()
    assert samples['training_process_up{training_rank="3",training_run="run-1"}'] == 1
    assert set(ended.split()) == {"ActiveState=inactive", "Result=success"}


def scraped(url: str) -> dict[str, float]:
    """Return the samples of an exporter that may still be starting."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            return parse(response.read().decode())
        time.sleep(0.05)
    raise TimeoutError(url)
