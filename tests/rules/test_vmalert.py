"""The rules do the same under VictoriaMetrics as under Prometheus."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.conftest import FRUGAL
from tests.rules.pack import ROOT

TOOL = ROOT / ".cache" / "tools" / "vmalert-tool"

EVERYTHING = bool(os.environ.get("EVERY_PATH"))

#: Modules of plays that ask for most of what engines could differ in: this engine takes five times as long as
#: Prometheus. With EVERY_PATH=1 all of them, as before a release.
PLAYS = sorted(path.stem for path in (ROOT / "promtool-tests" / "plays").glob("*.py")) if EVERYTHING else ["processes"]

#: By which second path plays come: each by one of them, or all without one too.
SECOND = ("", "turns") if EVERYTHING else ("turns",)

#: Its fixture is dear: one process for all of them.
pytestmark = [pytest.mark.patient, pytest.mark.xdist_group("vmalert")]


@pytest.fixture(scope="module", params=SECOND, ids=lambda second: "a second path" if second else "one path")
def generated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with vmalert-tool's files."""
    if not TOOL.exists():
        text = "no vmalert-tool: run scripts/tools/fetch_tools.sh"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
    folder = tmp_path_factory.mktemp("vmalert")
    second = ["--second", request.param] if request.param else []
    command = [ROOT / "promtool-tests" / "generate.py", "--vmalert", *second]
    subprocess.run([sys.executable, *command, folder, *PLAYS], check=True)
    return folder


@pytest.mark.parametrize("name", PLAYS)
def test_unit_tests(generated: Path, name: str) -> None:
    """The same unit tests pass."""
    command = [TOOL, "unittest", f"-files={generated / name}.yml"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=FRUGAL)
    assert done.returncode == 0, done.stdout + done.stderr
