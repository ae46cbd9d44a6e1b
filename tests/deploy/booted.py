"""Boots a systemd of its own with one unit: in namespaces, beside whatever runs the machine. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")
TIMEOUT = 20
_UNIFIED = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
#: What a service depends on by default; here they start nothing.
_TARGETS = ("sysinit", "basic", "shutdown", "multi-user", "network-online")

# Control groups, /run and /var/lib are its own, settings of the machine are closed to it, and it knows no units but
# the folder's.
_BOOT = """
echo $$ > "$1/cgroup.procs" && shift && exec unshare --mount --pid --fork --kill-child --uts --ipc --cgroup \
--mount-proc sh -ec '
for at in /run /var/lib; do mount -t tmpfs tmpfs $at; done
for at in /etc /proc/sys; do mount --bind $at $at; mount -o remount,bind,ro $at; done
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec env -i PATH="$PATH" container=laggard SYSTEMD_UNIT_PATH="$1" \
"$2" --system --unit="$3" --log-target=null --show-status=no
' sh "$@"
"""


def groups() -> Path | None:
    """Return where the control groups of version 2 are, None where there are none or this user may make none."""
    found = next((folder for folder in _UNIFIED if (folder / "cgroup.controllers").exists()), None)
    if found is None:
        return None
    probe = found / "laggard-probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return None
    return found


def missing() -> str:
    """Return what the machine lacks for a systemd beside its own, empty when nothing."""
    for tool in (str(SYSTEMD), "unshare", "nsenter", "systemctl"):
        if shutil.which(tool) is None:
            return f"{tool} is missing: apt-get install util-linux systemd"
    if Path("/run/systemd/system").is_dir():
        return "systemd runs this machine and its control groups: systemctl start shows the same"
    probe = ["unshare", "--mount", "--pid", "--fork", "--cgroup", "true"]
    works = subprocess.run(probe, capture_output=True, timeout=TIMEOUT, check=False).returncode == 0
    return "" if works and groups() else "no right to make namespaces and control groups: needs root"


class Booted:
    """A running systemd, by the number of its process, ``pid``."""

    def __init__(self, pid: int, unit: str) -> None:
        self.pid = pid
        self._unit = unit

    def control(self, *arguments: str) -> str:
        """Return what systemctl says."""
        command = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--cgroup", "systemctl", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False).stdout

    def wait_until_active(self) -> dict[str, str]:
        """Return the properties of the unit once it is active. Raises :class:`TimeoutError`."""
        end = time.monotonic() + TIMEOUT
        found: dict[str, str] = {}
        while time.monotonic() < end:
            found = dict(line.split("=", 1) for line in self.control("show", self._unit).splitlines() if "=" in line)
            if found.get("ActiveState") == "active":
                return found
            time.sleep(0.1)
        raise TimeoutError(f"{self._unit}: {found.get('ActiveState')}, {found.get('Result')}")

    def main_pid(self) -> int:
        """Return the number that the unit's process has here."""
        inside = self.control("show", "--property=MainPID", "--value", self._unit).strip()
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            status = Path(f"/proc/{child}/status").read_text()
            if status.partition("NSpid:")[2].splitlines()[0].split()[-1] == inside:
                return int(child)
        raise ProcessLookupError(inside)


@contextlib.contextmanager
def booted(units: Path, unit: str) -> Generator[Booted, None, None]:
    """Run systemd with the units of this folder and start one of them; nothing is left afterwards."""
    for name in _TARGETS:
        (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    above = groups()
    assert above is not None
    group = above / f"laggard-{os.getpid()}"
    group.mkdir()
    shell = ["sh", "-c", _BOOT, "sh", str(group), str(units), str(SYSTEMD), unit]
    process = subprocess.Popen(shell, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Booted(_systemd(process.pid), unit)
    finally:
        process.kill()  # and with it systemd, and with that all of its processes
        process.wait(TIMEOUT)
        _remove(group)


def _systemd(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        for child in children.read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return int(child)
        time.sleep(0.05)
    raise TimeoutError("systemd did not start")


def _remove(group: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while (group / "cgroup.events").read_text().startswith("populated 1") and time.monotonic() < end:
        time.sleep(0.05)
    for folder in sorted(group.rglob("*/"), key=lambda path: -len(path.parts)):
        folder.rmdir()
    group.rmdir()
