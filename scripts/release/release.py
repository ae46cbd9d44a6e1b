"""Makes what a release consists of: wheel, sdist, the pack as an archive, bill of materials, licences and checksums.

    python scripts/release/release.py --output dist

The same commit, with the same versions of what is needed, gives the same bytes: every time in them is that of the
commit, or ``SOURCE_DATE_EPOCH``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import datetime, timezone
from email.parser import Parser
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dependencies import LicenceError, Package, bill, licences, packages
from laggard.version import __version__

ROOT = Path(__file__).resolve().parent.parent.parent

#: The pack: what a site evaluates, shows and deploys, and no Python. Its files refer to each other, so each keeps its
#: place.
PACK = (
    "rules",
    "dashboards/json",
    "dashboards/provisioning",
    "dashboards/kustomization.yaml",
    "otel-collector",
    "deploy",
    "CHANGELOG.md",
    "LICENSE",
)


def commit_time() -> int:
    """Return ``SOURCE_DATE_EPOCH``, else the time of the commit.

    Raises :class:`SystemExit` where there is neither.
    """
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("release: no git checkout to take the time from; set SOURCE_DATE_EPOCH")
    return int(done.stdout)


def build(output: Path, epoch: int) -> tuple[Path, Path, Path]:
    """Build the sdist, the wheel for any platform and the wheel for this Python and processor; return where they are.

    Raises :class:`SystemExit` where one cannot be built, or would not run where it says that it does.
    """
    everywhere = f"manylinux_2_17_{platform.machine()}"

    def built(target: str, compiled: str) -> Path:
        # Its name tells the platform, which is not ours to say: in a folder of its own it is the only one.
        with tempfile.TemporaryDirectory(dir=output) as folder:
            command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder]
            environment = {
                **os.environ,
                "SOURCE_DATE_EPOCH": str(epoch),
                "LAGGARD_COMPILE": compiled,
                "LAGGARD_PLATFORM": everywhere,
            }
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"release: no {target}: {done.stderr.strip()}")
            (made,) = Path(folder).iterdir()
            return made.replace(output / made.name)

    # Where the compiled wheel does not fit, pip takes the one for any platform, whose hot path is Python.
    made = built("sdist", "no"), built("wheel", "no"), built("wheel", "must")
    command = [sys.executable, "-m", "auditwheel", "show", str(made[-1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if f'"{everywhere}"' not in done.stdout:
        said = " ".join((done.stdout or done.stderr).split())
        raise SystemExit(f"release: {made[-1].name} is not for {everywhere}: {said}")
    return made


def pack_files() -> Iterator[Path]:
    """Give the files of the pack, sorted by their path."""
    places = [ROOT / name for name in PACK]
    files = [place for place in places if place.is_file()]
    # The Helm chart has links to what lies elsewhere, which become folders.
    for folder in places:
        files += [Path(where, name) for where, _, names in os.walk(folder, followlinks=True) for name in names]
    yield from sorted(files)


def pack(output: Path, epoch: int) -> Path:
    """Write the archive of the pack and return where it is."""
    name = f"laggard-pack-{__version__}"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", dereference=True) as archive:
        for file in pack_files():
            entry = archive.gettarinfo(file, f"{name}/{file.relative_to(ROOT)}")
            # Nothing of the machine: no owner, and of the rights only whether it can be run.
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
            entry.mode = 0o755 if entry.mode & 0o100 else 0o644
            with file.open("rb") as stream:
                archive.addfile(entry, stream)
    path = output / f"{name}.tar.gz"
    path.write_bytes(gzip.compress(content.getvalue(), mtime=epoch))
    return path


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel needs, by its own word."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"laggard-{__version__}.dist-info/METADATA").decode()
    return Parser().parsestr(text).get_all("Requires-Dist", [])


def bundled(wheel: Path) -> Package:
    """Return the package in a wheel of Prometheus; what is in it stands in the bill of materials that it carries."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return Package(metadata["Name"], metadata["Version"], metadata["License-Expression"], frozenset(), ["local"])


def main() -> int:
    """Make the release."""
    arguments = argparse.ArgumentParser(prog="release", description="Make what a release consists of.")
    arguments.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for it (default dist)")
    output: Path = arguments.parse_args().output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    epoch = commit_time()
    sdist, wheel, compiled = build(output, epoch)
    made = [sdist, wheel, compiled, pack(output, epoch)]
    wanted = requirements(wheel)
    try:
        found = packages(wanted)
    except PackageNotFoundError as error:
        print(
            f"release: {error}; install what the release is made of: pip install -e '.[otel,exporter,cli,stacks,dev]'",
            file=sys.stderr,
        )
        return 1
    except LicenceError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    # Made before by prometheus_wheel.py: no Go is needed for the rest.
    programs = sorted(output.glob("laggard_prometheus-*.whl"))
    made += programs
    if programs:
        found["laggard-prometheus"] = bundled(programs[0])
    direct = frozenset(canonicalize_name(Requirement(line).name) for line in wanted)
    own = Package("laggard", __version__, "Apache-2.0", frozenset(found) & direct)
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    texts = {
        f"laggard-{__version__}.cdx.json": bill(found, own, datetime.fromtimestamp(epoch, timezone.utc), checksum),
        f"laggard-{__version__}-licences.md": licences(found, __version__),
    }
    for name, text in texts.items():
        made.append(output / name)
        made[-1].write_text(text, encoding="utf-8")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made)]
    (output / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
