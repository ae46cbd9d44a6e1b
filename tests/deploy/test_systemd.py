"""The systemd unit of the exporter."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from laggard_exporter import flags
from tests.exporter.support import EXPORTER, REPOSITORY, TIMEOUT

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
    assert named == {"--web.config.file"}
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
