"""The dashboards are what Grafana's own types say that dashboards are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from dashboards.__main__ import FOLDER
from tests.rules.pack import ROOT

HERE = Path(__file__).resolve().parent / "schema"
#: What npm installs is kept beside the other tools.
INSTALLED = ROOT / ".cache" / "npm"


#: Its fixture is dear: one process for all of them.
pytestmark = pytest.mark.xdist_group("npm")


@pytest.fixture(scope="module")
def modules() -> Path:
    """Return the folder with Grafana's published types and what reads them."""
    wanted = (HERE / "package.json").read_text(encoding="utf-8")
    known = INSTALLED / "package.json"
    if not known.exists() or known.read_text(encoding="utf-8") != wanted:
        problem = "" if shutil.which("npm") else "no npm: run apt-get install npm"
        problem = problem or _install(wanted)
        if problem:
            pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    return INSTALLED / "node_modules"


def _install(wanted: str) -> str:
    """Install what package.json wants, whole or not at all; return what npm says if it fails."""
    INSTALLED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=INSTALLED.parent) as folder:
        (Path(folder) / "package.json").write_text(wanted, encoding="utf-8")
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
        if done.returncode:
            return done.stderr
        shutil.rmtree(INSTALLED, ignore_errors=True)
        Path(folder).rename(INSTALLED)
        Path(folder).mkdir()
    return ""


def _check(modules: Path, *files: Path) -> list[str]:
    command = ["node", HERE / "check.mjs", modules, *files]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_schema(modules: Path) -> None:
    """Every property of every dashboard and panel is one that Grafana knows, with a value that it allows."""
    assert _check(modules, *sorted(FOLDER.iterdir())) == []


def test_the_check_sees_mistakes(modules: Path, tmp_path: Path) -> None:
    """A property of a wrong name, and an option of a wrong value, are both told."""
    board = json.loads((FOLDER / "laggard-run.json").read_text(encoding="utf-8"))
    board["timeZone"] = board.pop("timezone")
    panel = next(panel for panel in board["panels"] if panel["type"] == "stat")
    panel["options"]["graphMode"] = "curve"
    (tmp_path / "wrong.json").write_text(json.dumps(board), encoding="utf-8")
    problems = _check(modules, tmp_path / "wrong.json")
    assert len(problems) == 2
    assert "timeZone" in problems[0]
    assert "graphMode" in problems[1]
