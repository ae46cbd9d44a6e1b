"""The wheel holds what an installation needs, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from laggard_cli.rules.render import rule_files
from tests.rules.pack import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(list(map(str, command)), check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def test_the_base_install_needs_two_packages(wheel: Path) -> None:
    """A training process gets opentelemetry-api and wrapt; everything else is an extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(line.split("<")[0].split(">")[0] for line in required) == ["opentelemetry-api", "wrapt"]
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_rule_pack_travels_with_the_command(wheel: Path, tmp_path: Path) -> None:
    """From an unpacked wheel, far from any checkout, the rules are rendered."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        roots = {name.split("/")[0] for name in archive.namelist()}
        # And so does the style of a report.
        assert "laggard_cli/report/page.css" in archive.namelist()
    assert {root for root in roots if not root.endswith(".dist-info")} == {"laggard", "laggard_cli", "laggard_exporter"}
    program = (
        "import sys; sys.path.insert(0, 'site'); import laggard_cli; from laggard_cli.main import main;"
        "print(laggard_cli.__file__); sys.exit(main(['rules', 'render', '--profile', 'fast', '--output', 'rules']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "site/laggard_cli/" in done.stdout
    assert sorted(path.name for path in (tmp_path / "rules").iterdir()) == sorted(rule_files())
