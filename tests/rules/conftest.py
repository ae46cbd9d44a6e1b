"""Fixtures of the rules' tests: promtool in every version that can be had here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules.pack import ROOT

#: The oldest release that the rules must load in, one of the present major version, and the newest.
VERSIONS = ("2.42", "2.53", "3.5", "3.15")

#: Where the others are fetched, this one is built from its source; see lab/evaluation/engine/promtool.
NEWEST = VERSIONS[-1]

#: With one thread of Go nobody looks for another's work, which takes a tenth of the time.
FRUGAL = {**os.environ, "GOMAXPROCS": "1"}


def _found() -> dict[str, Path]:
    """Return the promtools of this machine by major and minor version."""
    candidates = sorted((ROOT / ".cache" / "tools").glob("promtool-*"))
    if on_path := shutil.which("promtool"):
        candidates.append(Path(on_path))
    tools: dict[str, Path] = {}
    for candidate in candidates:
        text = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=True)
        if version := re.search(r"version (\d+\.\d+)", text.stdout + text.stderr):
            tools[version[1]] = candidate
    return tools


def by_age(version: str) -> list[int]:
    """Return what versions are sorted by."""
    return [int(part) for part in version.split(".")]


TOOLS = _found()


@pytest.fixture(params=sorted({*VERSIONS, *TOOLS}, key=by_age))
def promtool(request: pytest.FixtureRequest) -> Path:
    """Return promtool in one version after the other; a missing one is skipped here and an error in CI."""
    version: str = request.param
    if version in TOOLS:
        return TOOLS[version]
    commands = {VERSIONS[0]: "apt-get install prometheus", NEWEST: "scripts/tools/build_rule_engine.sh, which needs Go"}
    text = f"no promtool {version}: run {commands.get(version, 'scripts/tools/fetch_tools.sh')}"
    if os.environ.get("CI") and (version != NEWEST or shutil.which("go")):
        pytest.fail(text)
    pytest.skip(text)
