"""Fixtures of the rules' tests: promtool in every version that can be had here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules.pack import ROOT

#: The oldest release that the rules must load in, and one of the present major version.
VERSIONS = ("2.42", "2.53", "3.5")


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


def _by_age(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


TOOLS = _found()


@pytest.fixture(params=sorted({*VERSIONS, *TOOLS}, key=_by_age))
def promtool(request: pytest.FixtureRequest) -> Path:
    """Return promtool in one version after the other; a missing one is skipped here and an error in CI."""
    version: str = request.param
    if version in TOOLS:
        return TOOLS[version]
    command = "apt-get install prometheus" if version == VERSIONS[0] else "scripts/fetch_tools.sh"
    text = f"no promtool {version}: run {command}"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)
