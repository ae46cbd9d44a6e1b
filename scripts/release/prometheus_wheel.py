"""Makes the wheels ``laggard-prometheus``: Prometheus, as ruff or cmake ship their programs, for ``laggard[local]``.

    python scripts/release/prometheus_wheel.py --output dist

Built from the Go module of the release that ``prometheus/go.mod`` pins, whose sums are in ``go.sum``, with the Go that
is pinned here, for each processor. Nothing of the machine gets in: the same commit gives the same bytes. A wheel holds
the program, its licence and notice, those of every module in it, and its bill of materials (``sboms/``, PEP 770).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from dependencies import COMPATIBLE
from release import commit_time

SOURCE = Path(__file__).resolve().parent / "prometheus"
MODULE = "github.com/prometheus/prometheus"
PROGRAM = f"{MODULE}/cmd/prometheus"
#: In Prometheus' .promu.yml, with the newest patch. Downloaded by Go itself where another one is here.
GO = "go1.27.3"
#: Without what asks clouds for targets. Its pages are no part of the Go module.
TAGS = "netgo,remove_all_sd"

#: Go's name of each processor, and the wheel's; the program is static, so it runs with any C library.
PLATFORMS = {
    "amd64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "arm64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
}

#: What tells the text of a licence, the first that fits.
_LICENCES = {
    "MPL-2.0": "Mozilla Public License",
    "Apache-2.0": "Apache License",
    "MIT": "Permission is hereby granted, free of charge",
    "ISC": "Permission to use, copy, modify, and(/or)? distribute this software for any purpose",
    "BSD-3-Clause": r"Neither the name(s)? of|may (not )?be used to endorse or promote",
    "BSD-2-Clause": "Redistribution and use in source and binary forms",
    "CC0-1.0": "CC0 1.0 Universal",
}
_LICENCE_FILE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|PATENTS)((?!.*[.]go$)[._-].*)?", re.IGNORECASE)

_INIT = '''"""Prometheus {version} as a program: ``python -m laggard_prometheus`` runs it."""

from __future__ import annotations

from pathlib import Path

__version__ = "{version}"
#: Where the program is.
PROGRAM = Path(__file__).with_name("prometheus")
'''
_MAIN = '''"""Runs Prometheus in place of this process."""

from __future__ import annotations

import os
import sys

from laggard_prometheus import PROGRAM

os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])
'''


@dataclass(frozen=True)
class Module:
    """A Go module in the program."""

    path: str
    version: str
    folder: Path
    sum: str
    licence: str


class WheelError(Exception):
    """Why no wheel can be made, in one line."""


def version() -> str:
    """Return the release of Prometheus that is pinned: its module v0.315.0 is 3.15.0."""
    text = (SOURCE / "go.mod").read_text(encoding="utf-8")
    found = re.search(rf"^(?:require )?\s*{re.escape(MODULE)} v0\.(\d+)(\d\d)\.(\d+)", text, re.MULTILINE)
    if not found:
        raise WheelError(f"{SOURCE / 'go.mod'} does not require {MODULE}")
    major, minor, patch = map(int, found.groups())
    return f"{major}.{minor}.{patch}"


def go(*arguments: str, **environment: str) -> str:
    """Run Go in the folder of the pinned module and return what it prints. Raises :class:`WheelError`."""
    if shutil.which("go") is None:
        raise WheelError("Go is needed (on Debian: apt-get install golang-go), 1.21 or newer")
    flags = {"GOTOOLCHAIN": GO, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", **environment}
    done = subprocess.run(
        ["go", *arguments], cwd=SOURCE, env={**os.environ, **flags}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WheelError(f"go {arguments[0]}: {' '.join(done.stderr.split())[-500:]}")
    return done.stdout


def build(processor: str, folder: Path) -> Path:
    """Build the program for a processor and return where it is."""
    program = folder / "prometheus"
    flags = f"-s -w -buildid= -X github.com/prometheus/common/version.Version={version()}"
    command = ["build", "-trimpath", "-buildvcs=false", "-tags", TAGS, f"-ldflags={flags}", "-o", str(program), PROGRAM]
    go(*command, GOOS="linux", GOARCH=processor)
    return program


def modules(program: Path) -> Iterator[Module]:
    """Give the modules that a program is made of, as it says itself, by their path."""
    lines = [line.split("\t") for line in go("version", "-m", str(program)).splitlines()]
    for line in lines:
        if line[1:2] == ["dep"]:
            path, release = line[2], line[3]
            described = json.loads(go("mod", "download", "-json", f"{path}@{release}"))
            folder = Path(described["Dir"])
            yield Module(path, release, folder, described["Sum"], licence(path, folder))


def licence(path: str, folder: Path) -> str:
    """Return the licences of a module as an SPDX expression. Raises :class:`WheelError` for one that is not known."""
    found: set[str] = set()
    for file in licence_files(folder):
        if re.match("NOTICE|PATENTS", file.name, re.IGNORECASE):
            continue
        text = " ".join(file.read_text(encoding="utf-8", errors="replace").split())
        found |= {next((name for name, words in _LICENCES.items() if re.search(words, text)), "unknown")}
    if not found or not found <= COMPATIBLE:
        raise WheelError(f"{path}: its licence must be one of {', '.join(sorted(COMPATIBLE))}, got {sorted(found)}")
    return " AND ".join(sorted(found))


def licence_files(folder: Path) -> list[Path]:
    """Return the licences and notices at the root of a module."""
    return sorted(file for file in folder.iterdir() if file.is_file() and _LICENCE_FILE.fullmatch(file.name))


def expression(found: list[Module]) -> str:
    """Return the licence of the program as a whole, as an SPDX expression."""
    return " AND ".join(sorted({part for module in found for part in module.licence.split(" AND ")}))


def bill(found: list[Module], made: datetime) -> str:
    """Return the bill of materials of the program, as CycloneDX 1.6."""
    own = {"type": "application", "name": "prometheus", "version": version(), "bom-ref": "prometheus"}
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:golang/{module.path}@{module.version}",
            "name": module.path,
            "version": module.version,
            "licenses": [{"expression": module.licence}],
            "purl": f"pkg:golang/{module.path}@{module.version}",
            "properties": [{"name": "go:sum", "value": module.sum}],
        }
        for module in found
    ]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(components)).urn,
        "version": 1,
        "metadata": {"timestamp": made.isoformat(), "component": own},
        "components": components,
        "dependencies": [{"ref": "prometheus", "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(document, indent=2) + "\n"


def content(program: Path, found: list[Module], processor: str, epoch: int) -> Iterator[tuple[str, bytes]]:
    """Give the files of a wheel but for its RECORD: path and bytes."""
    information = f"laggard_prometheus-{version()}.dist-info"
    yield "laggard_prometheus/__init__.py", _INIT.format(version=version()).encode()
    yield "laggard_prometheus/__main__.py", _MAIN.encode()
    yield "laggard_prometheus/py.typed", b""
    yield "laggard_prometheus/prometheus", program.read_bytes()
    licences: list[str] = []
    for module in found:
        for file in licence_files(module.folder):
            place = file.name if module.path == MODULE else f"{module.path}/{file.name}"
            licences.append(place)
            yield f"{information}/licenses/{place}", file.read_bytes()
    yield f"{information}/sboms/prometheus.cdx.json", bill(found, datetime.fromtimestamp(epoch, timezone.utc)).encode()
    metadata = [
        "Metadata-Version: 2.4",
        "Name: laggard-prometheus",
        f"Version: {version()}",
        f"Summary: The monitoring server Prometheus {version()} as a program, for laggard run --local",
        f"License-Expression: {expression(found)}",
        *(f"License-File: {place}" for place in licences),
        "Requires-Python: >=3.10",
    ]
    yield f"{information}/METADATA", ("\n".join(metadata) + "\n").encode()
    tags = [f"Tag: py3-none-{platform}" for platform in PLATFORMS[processor].split(".")]
    wheel = ["Wheel-Version: 1.0", "Generator: laggard", "Root-Is-Purelib: false", *tags]
    yield f"{information}/WHEEL", ("\n".join(wheel) + "\n").encode()


def write(files: Mapping[str, bytes], path: Path, epoch: int) -> None:
    """Write a wheel with its RECORD."""
    moment = datetime.fromtimestamp(epoch, timezone.utc).timetuple()[:6]
    record = f"laggard_prometheus-{version()}.dist-info/RECORD"
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    ]
    everything = {**files, record: "".join([*lines, f"{record},,\n"]).encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in everything.items():
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if name.endswith("/prometheus") else 0o100644) << 16
            archive.writestr(entry, data)


def make(processor: str, output: Path, epoch: int) -> Path:
    """Make the wheel for a processor, in a folder, and return where it is. Raises :class:`WheelError`."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(processor, Path(folder))
        found = list(modules(program))
        path = output / f"laggard_prometheus-{version()}-py3-none-{PLATFORMS[processor]}.whl"
        write(dict(content(program, found, processor, epoch)), path, epoch)
    return path


def main() -> int:
    """Make the wheels."""
    parser = argparse.ArgumentParser(prog="prometheus_wheel", description="Make the wheels laggard-prometheus.")
    parser.add_argument("--output", type=Path, default=SOURCE.parents[2] / "dist", help="folder (default dist)")
    parser.add_argument("--processors", nargs="+", choices=PLATFORMS, default=list(PLATFORMS), help="(default all)")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        for processor in options.processors:
            path = make(processor, options.output, commit_time())
            print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    except WheelError as error:
        print(f"prometheus_wheel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
