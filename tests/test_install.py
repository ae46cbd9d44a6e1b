"""Wheel and sdist in environments of their own, with each extra, do what the README says of that extra.

The suite runs one of them. ``make test-install`` runs them all: it sets INSTALL=all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from laggard.version import PACK_VERSION, __version__
from laggard_cli.commands import COMMANDS
from laggard_cli.rules.render import rule_files
from tests.rules.pack import ROOT
from tests.test_packaging import release

__all__ = ["release"]

EXTRAS = ("", "otel", "exporter", "cli", "stacks", "all")
#: What is installed, as a file of the release, and whether the hot path is compiled then.
KINDS = {
    "wheel": ("*-none-any.whl", False),
    "compiled wheel": ("*-cp*.whl", True),
    "sdist": (f"laggard-{__version__}.tar.gz", True),
}
CASES = [(kind, extra) for kind in KINDS for extra in EXTRAS]
if os.environ.get("INSTALL") != "all":
    CASES = [("compiled wheel", "cli")]

#: Steps that are marked by hand, without torch.
LOOP = """
import sys, time
import laggard

laggard.instrument()
for _ in range(5):
    with laggard.step():
        with laggard.phase("data"):
            time.sleep(0.01)
print("trained", flush=True)
if sys.argv[1:]:
    time.sleep(60)
"""

VERSIONS = f"{__version__} (rules {PACK_VERSION})\n"


class Installation:
    """An environment with laggard in it, and nothing of this one."""

    def __init__(self, folder: Path, package: str) -> None:
        self.folder = folder
        self._binaries = folder / "environment" / "bin"
        kept = ("LANG", "LC_ALL", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
        self._environment = {
            **{name: value for name, value in os.environ.items() if name in kept or name.startswith("PIP_")},
            "PATH": f"{self._binaries}:/usr/bin:/bin",
            "HOME": str(folder),
            "LAGGARD_RUN": "installed",
            "LAGGARD_STATE_DIR": str(folder / "state"),
        }
        (folder / "loop.py").write_text(LOOP)
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        done = self.run("pip", "install", "--quiet", *constraints, package)
        assert done.returncode == 0, done.stderr
        assert self.run("pip", "check").stdout == "No broken requirements found.\n"

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command of the environment, far from the checkout."""
        return subprocess.Popen(
            [str(self._binaries / command[0]), *command[1:]],
            cwd=self.folder,
            env={**self._environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment."""
        with self.start(*command, **environment) as process:
            output, errors = process.communicate(timeout=300)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def check_base(installed: Installation) -> None:
    """The package is imported, a loop runs, and the versions are said."""
    assert installed.run("laggard", "--version").stdout == f"laggard {VERSIONS}"
    done = installed.run("python", "loop.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "hook" not in done.stderr
    assert list((installed.folder / "state").iterdir()), "a state file stays for the exporter"


def check_lacks(installed: Installation) -> None:
    """What is not installed is named, with the command that installs it."""
    done = installed.run("laggard-exporter", "--version")
    missing = "laggard-exporter: error: it needs the package bcrypt: pip install 'laggard[exporter]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", missing)
    done = installed.run("laggard", "diagnose", "--prometheus", "http://localhost:1")
    missing = r"laggard diagnose: error: diagnose needs the package \w+: pip install 'laggard\[cli\]'\n"
    assert re.fullmatch(missing, done.stderr)
    done = installed.run("laggard", "run", "python", "loop.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'laggard[otel]'" in done.stderr


def check_otel(installed: Installation) -> None:
    """Under OpenTelemetry's launcher the steps arrive as metrics."""
    exporters = {"OTEL_METRICS_EXPORTER": "console", "OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    done = installed.run("opentelemetry-instrument", "python", "loop.py", **exporters, LAGGARD_WARMUP_STEPS="0")
    assert done.returncode == 0, done.stderr
    metrics = {
        metric["name"]: metric["data"]["data_points"]
        for page in re.findall(r"^\{\n.*?^\}$", done.stdout, re.MULTILINE | re.DOTALL)
        for resource in json.loads(page)["resource_metrics"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    (point,) = metrics["training.step.duration"]
    assert point["count"] == 5
    assert point["attributes"]["training.run"] == "installed"


def check_exporter(installed: Installation) -> None:
    """The node exporter serves a page that names its version."""
    assert installed.run("laggard-exporter", "--version").stdout == f"laggard-exporter {VERSIONS}"
    process = installed.start("laggard-exporter", "--web.listen-address=127.0.0.1:0")
    try:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.findall(r"http://[\d.]+:\d+", line)))
        with urllib.request.urlopen(f"{address}/metrics", timeout=20) as answer:
            page = answer.read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert f'laggard_exporter_build_info{{version="{__version__}"}} 1.0' in page
    assert "laggard_exporter_collector_success" in page


def check_cli(installed: Installation) -> None:
    """The rules are rendered, and every command can at least say what it does."""
    done = installed.run("laggard", "rules", "render", "--profile", "fast", "--output", "rules")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (installed.folder / "rules").iterdir()) == sorted(rule_files())
    for command in COMMANDS:
        done = installed.run("laggard", command, "--help")
        assert (done.returncode, done.stderr) == (0, ""), command


def check_stacks(installed: Installation) -> None:
    """Where a rank of this host stands is read from outside."""
    rank = installed.start("python", "loop.py", "wait")
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "trained\n"
        done = installed.run("laggard", "stacks", "--run", "installed", "--json")
    finally:
        rank.kill()
        rank.communicate(timeout=20)
    assert done.returncode == 0, done.stderr
    (process,) = json.loads(done.stdout)["0"]
    (main,) = (thread for thread in process["threads"] if "main" in thread["name"].lower())
    assert "loop.py" in main["frames"][-1]


CHECKS = {"otel": check_otel, "exporter": check_exporter, "cli": check_cli, "stacks": check_stacks}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "extra"), CASES)
def test_an_installation_does_what_its_extra_is_for(kind: str, extra: str, release: Path, tmp_path: Path) -> None:
    """In an environment of its own, with what pip brings along and nothing else."""
    pattern, compiled = KINDS[kind]
    (file,) = release.glob(pattern)
    installed = Installation(tmp_path, f"{file}[{extra}]" if extra else str(file))
    check_base(installed)
    program = "from laggard._recorder import Recorder; print(Recorder().native is not None)"
    assert installed.run("python", "-c", program).stdout == f"{compiled}\n"
    if not extra:
        check_lacks(installed)
    for name, check in CHECKS.items():
        if extra in (name, "all"):
            check(installed)


@pytest.mark.parametrize(("code", "installers"), [(0, ["uv"]), (1, ["uv", "pip"])])
def test_where_uv_does_not_get_through_pip_installs(code: int, installers: list[str], tmp_path: Path) -> None:
    """Both are asked for the same, with the versions of this checkout."""
    (tmp_path / "bin").mkdir()
    python, calls = tmp_path / "bin" / "python", tmp_path / "calls"
    python.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n[ "$2" != uv ] || exit {code}\n')
    python.chmod(0o755)
    wanted = ["--constraint", "constraints.txt", "--editable", ".[otel]"]
    subprocess.run([ROOT / "scripts" / "tools" / "install.sh", tmp_path, *wanted], check=True, capture_output=True)
    uv, *asked = [line.split() for line in calls.read_text().splitlines()]
    assert uv[-3:] == ["--constraint", "constraints.txt", "uv"]
    assert [line[1] for line in asked] == installers
    assert all(line[-len(wanted) :] == wanted for line in asked)
