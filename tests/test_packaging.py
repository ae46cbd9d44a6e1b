"""A release: it holds what an installation needs and nothing else, and is made again with equal bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from laggard.version import PACK_VERSION, __version__
from laggard_cli.rules.render import rule_files
from tests.rules.pack import ROOT

#: One process for all of them: their fixture is dear.
pytestmark = pytest.mark.xdist_group("packaging")

#: Any time that no file here has.
EPOCH = 1_700_000_000


#: Runs a command of the packages in a folder, and shows where they are.
_MAIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); import laggard_cli; from laggard_cli.main import main;"
    "print(laggard_cli.__file__); sys.exit(main(sys.argv[2:]))"
)


def make(root: Path, output: Path) -> None:
    """Make a release of a folder."""
    command = [sys.executable, str(root / "scripts" / "release" / "release.py"), "--output", str(output)]
    subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}, check=True, timeout=120)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a release."""
    folder = tmp_path_factory.mktemp("release")
    make(ROOT, folder)
    return folder


@pytest.fixture
def wheel(release: Path) -> Path:
    """Give the wheel of the release."""
    return release / f"laggard-{__version__}-py3-none-any.whl"


def checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of each file by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_a_release_is_complete(release: Path) -> None:
    """It is seven files, and the seventh has the checksums of the six; one wheel is of this Python and processor."""
    sums = checksums(release)
    del sums["SHA256SUMS"]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert list(sums) == [
        f"laggard-{__version__}-{python}-{python}-manylinux_2_17_{platform.machine()}.whl",
        f"laggard-{__version__}-licences.md",
        f"laggard-{__version__}-py3-none-any.whl",
        f"laggard-{__version__}.cdx.json",
        f"laggard-{__version__}.tar.gz",
        f"laggard-pack-{__version__}.tar.gz",
    ]
    text = "".join(f"{checksum}  {name}\n" for name, checksum in sums.items())
    assert (release / "SHA256SUMS").read_text() == text


def test_the_sdist_elsewhere_gives_the_same_bytes(release: Path, tmp_path: Path) -> None:
    """Unpacked in another folder, with other times of its files, the sdist makes the same release, itself included."""
    with tarfile.open(release / f"laggard-{__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"laggard-{__version__}"
    for path in root.rglob("*"):
        os.utime(path, (0, 0))
    make(root, tmp_path / "again")
    assert checksums(tmp_path / "again") == checksums(release)


def test_nothing_of_the_machine_is_in_it(release: Path, tmp_path: Path) -> None:
    """No file names the folder that it was made in, and no archive an owner or a time but the given one."""
    for packed in release.glob("*.whl"):
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(tmp_path / packed.name)
    for packed in release.glob("*.tar.gz"):
        with tarfile.open(packed) as archive:
            members = archive.getmembers()
            archive.extractall(tmp_path / packed.name, filter="data")
        assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in members} == {(0, 0, "", "")}
        assert {entry.mtime for entry in members} == {EPOCH}
    for path in (*release.glob("*.md"), *release.glob("*.json"), *tmp_path.rglob("*")):
        assert not path.is_file() or str(ROOT).encode() not in path.read_bytes(), path


def test_one_wheel_is_compiled_and_the_other_is_for_every_platform(release: Path, wheel: Path) -> None:
    """But for what is compiled, and what says that it is there, both have the same files, without its source."""
    (other,) = set(release.glob("*.whl")) - {wheel}
    content: list[dict[str, bytes]] = []
    for path in (wheel, other):
        with zipfile.ZipFile(path) as archive:
            content.append({name: archive.read(name) for name in archive.namelist()})
    pure, compiled = content
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert set(compiled) - set(pure) == {f"laggard/_native{suffix}", f"laggard/_sigaction{suffix}"}
    assert set(pure) - set(compiled) == set()
    differ = {name.rpartition("/")[2] for name in pure if pure[name] != compiled[name]}
    assert differ == {"RECORD", "WHEEL"}
    assert not [name for name in compiled if name.endswith(".c")]


@pytest.mark.parametrize(
    ("wanted", "made"), [("must", "it cannot be compiled: no C compiler"), ("try", "none-any.whl")]
)
def test_without_a_compiler_the_wheel_is_for_every_platform(wanted: str, made: str, tmp_path: Path) -> None:
    """Unless the compiled hot path must be in it: then one line says why there is no wheel."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "LAGGARD_COMPILE": wanted, "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode == 0) == (wanted == "try")
    assert made.replace("it can", "the hot path can") in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_wheel_that_needs_a_newer_system_is_refused(tmp_path: Path) -> None:
    """One line says what it needs: ``closefrom`` is of the C library 2.34, and the wheel is for 2.17."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "release" / "release.py"), "--output", str(tmp_path)],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "CC": "cc -Wl,--undefined=closefrom"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"is not for manylinux_2_17_{platform.machine()}: " in line
    assert "GLIBC_2.34" in line
    assert not (tmp_path / "SHA256SUMS").exists()


def test_the_base_install_needs_one_package(wheel: Path) -> None:
    """A training process gets opentelemetry-api; everything else is an extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(line.split("<")[0].split(">")[0] for line in required) == ["opentelemetry-api"]
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


def test_a_site_is_written_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """From an unpacked wheel, far from any checkout, it is the site that the checkout writes."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    for name, where in (("wheel", tmp_path / "unpacked"), ("checkout", ROOT / "cli")):
        command = [sys.executable, "-c", _MAIN, str(where), "init", name, "--targets", "node-1,node-2"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert str(where) in done.stdout
    sites = [
        {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("wheel", "checkout")
    ]
    assert sites[0] == sites[1]
    assert len(sites[0]) > len(rule_files())
    runbook = subprocess.run(
        [sys.executable, "-c", _MAIN, str(tmp_path / "unpacked"), "runbook", "TrainingStalled"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "# TrainingStalled" in runbook.stdout


def test_the_pack_in_the_wheel_is_that_of_the_checkout(wheel: Path) -> None:
    """Rules with runbooks, dashboards, configurations of servers: every file, byte for byte."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("laggard_cli/pack/")]
        packed = {name.removeprefix("laggard_cli/pack/"): archive.read(name) for name in names}
    folders = {
        "rules": "rules",
        "dashboards": "dashboards/json",
        "dashboards/provisioning": "dashboards/provisioning",
        "otel-collector": "otel-collector",
        **{folder: folder for folder in ("deploy/alertmanager", "deploy/compose", "deploy/prometheus")},
    }
    # Of the examples only what the demo trains.
    expected = {"examples/char_gpt.py": (ROOT / "examples" / "char_gpt.py").read_bytes()} | {
        f"{name}/{path.relative_to(ROOT / folder)}": path.read_bytes()
        for name, folder in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected


def test_the_archive_of_the_pack_stands_alone(release: Path, tmp_path: Path) -> None:
    """Unpacked, it has the rules of its version and a runbook for each alert, and its configurations find its rules."""
    with tarfile.open(release / f"laggard-pack-{__version__}.tar.gz") as archive:
        assert not [entry.name for entry in archive.getmembers() if not entry.isfile()]
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"laggard-pack-{__version__}"
    tops = {"CHANGELOG.md", "LICENSE", "dashboards", "deploy", "otel-collector", "rules"}
    assert {path.name for path in root.iterdir()} == tops
    assert f"version: {PACK_VERSION}" in (root / "rules" / "score.yml").read_text()
    assert sorted(path.name for path in (root / "rules").glob("*.yml")) == sorted(rule_files())
    alerts = {
        name for path in (root / "rules").glob("*.yml") for name in re.findall(r"- alert: (\w+)", path.read_text())
    }
    assert {path.stem for path in (root / "rules" / "runbooks").iterdir()} == alerts
    prometheus = root / "deploy" / "prometheus" / "prometheus.yml"
    for pattern in yaml.safe_load(prometheus.read_text())["rule_files"]:
        assert len(list(prometheus.parent.glob(pattern))) == len(rule_files())


def test_the_bill_of_materials_is_valid_and_names_what_extras_bring(release: Path) -> None:
    """It passes the schema of CycloneDX, says who needs whom, and which extra brings what."""
    text = (release / f"laggard-{__version__}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    content = json.loads(text)
    assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    components = {component["name"]: component for component in content["components"]}
    base = {name for name, component in components.items() if component["scope"] == "required"}
    assert base == {"opentelemetry-api", "typing-extensions"}
    assert components["pyyaml"]["properties"] == [
        {"name": "laggard:extra", "value": "exporter"},
        {"name": "laggard:extra", "value": "cli"},
    ]
    needs = {entry["ref"].split("==")[0]: entry["dependsOn"] for entry in content["dependencies"]}
    assert {name.split("==")[0] for name in needs["rich"]} == {"markdown-it-py", "pygments"}
    assert {"opentelemetry-api", "psutil", "httpx", "py-spy"} <= {name.split("==")[0] for name in needs["laggard"]}
    assert set(needs) == {"laggard", *components}
    # What is developed with is no part of it; purls name a package and its version, and no place to get it from.
    assert "pytest" not in components
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://cyclonedx.org/schema/bom-1.6.schema.json"}


def test_licences_are_listed_and_judged(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each package of the bill has one line; a licence that asks more than ours ends the release."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "release"))
    import dependencies  # noqa: PLC0415 - a script, found beside others of its kind

    text = (release / f"laggard-{__version__}-licences.md").read_text()
    rows = re.findall(r"^\| ([\w.-]+) \| \d[\w.]* \| (.+) \| .+ \|$", text, re.MULTILINE)
    content = json.loads((release / f"laggard-{__version__}.cdx.json").read_text())
    assert [name for name, _ in rows] == [component["name"] for component in content["components"]]
    assert dict(rows)["wrapt"] == "BSD-2-Clause"
    assert dict(rows)["promql-parser"] == "MIT"
    assert all(dependencies.compatible(licence) for _, licence in rows)
    assert dependencies.compatible("GPL-3.0-only OR MIT")
    for licence in (
        "GPL-3.0-only",
        "MIT AND LGPL-2.1-only",
        "(MIT OR GPL-3.0-only) AND GPL-2.0-only",
        "LicenseRef-Own",
    ):
        assert not dependencies.compatible(licence)
    monkeypatch.setattr(dependencies, "COMPATIBLE", dependencies.COMPATIBLE - {"BSD-2-Clause"})
    with pytest.raises(dependencies.LicenceError, match=r"under Apache-2\.0 and cannot need wrapt: BSD-2-Clause"):
        dependencies.packages(["wrapt"])
    monkeypatch.setattr(dependencies, "READ", {})
    with pytest.raises(
        dependencies.LicenceError, match=r"protobuf: its licence must be an SPDX expression, got '3-Clause BSD License'"
    ):
        dependencies.packages(["protobuf"])


def test_pinned_packages_take_every_release_of_their_python() -> None:
    """Debian 12 has Python 3.11.2: one package that wants 3.11.5, and a new user's first command fails there."""
    first = f"{sys.version_info.major}.{sys.version_info.minor}.0"
    wanted: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        pinned = Requirement(line) if line and not line.startswith("#") else None
        if pinned and (pinned.marker is None or pinned.marker.evaluate()):
            # Of the peers that only the benchmarks need, none is here.
            with contextlib.suppress(PackageNotFoundError):
                wanted[pinned.name] = str(metadata(pinned.name).json.get("requires_python", ""))
    assert "torch" in wanted
    assert {name: needs for name, needs in wanted.items() if not SpecifierSet(needs).contains(first)} == {}
