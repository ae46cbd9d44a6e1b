"""What an installation brings with it, extra by extra: the bill of materials and the list of licences of a release.

Versions are those that are installed here, which ``constraints.txt`` pins, for this version of Python on this system.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: What users install. The others are for those who work on laggard.
EXTRAS = ("otel", "exporter", "cli", "stacks")

#: They allow use beside code under Apache-2.0. MPL-2.0 asks something only of who changes its files, and none of them
#: travels in the wheel.
COMPATIBLE = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0", "PSF-2.0", "Zlib"}
)

#: Packages whose metadata names no licence, or not which one: what the text of the licence that they carry is.
READ = {"nvidia-ml-py": "BSD-3-Clause", "promql-parser": "MIT", "protobuf": "BSD-3-Clause"}

_CLASSIFIERS = {"License :: OSI Approved :: MIT License": "MIT"}


class LicenceError(Exception):
    """A package has a licence that is not known, or not compatible with ours."""


@dataclass
class Package:
    """A package that an installation brings with it."""

    name: str
    version: str
    licence: str
    """An SPDX expression."""
    needs: frozenset[str]
    """Names of the packages that it needs itself."""
    extras: list[str] = field(default_factory=list[str])
    """Which of :data:`EXTRAS` bring it; empty: every installation has it."""


def licence(package: metadata.PackageMetadata) -> str:
    """Return the licence of a package as an SPDX expression.

    Raises:
        LicenceError: its metadata has none, and :data:`READ` neither.
    """
    name = canonicalize_name(package["Name"])
    said = READ.get(name) or package["License-Expression"] or package["License"]
    if not said:
        said = next((_CLASSIFIERS[line] for line in package.get_all("Classifier", []) if line in _CLASSIFIERS), "")
    try:
        return str(canonicalize_license_expression(said))
    except InvalidLicenseExpression as error:
        raise LicenceError(
            f"{name}: its licence must be an SPDX expression, got {said!r}; read it and add it to READ"
        ) from error


def compatible(expression: str) -> bool:
    """Return whether laggard may need a package under this licence. Nested expressions are for a person to judge."""
    choices = expression.split(" OR ")
    return any(all(term in COMPATIBLE for term in choice.split(" AND ")) for choice in choices)


def packages(requirements: Iterable[str]) -> dict[str, Package]:
    """Return what the requirements of laggard bring with them, in each extra and without.

    Raises:
        PackageNotFoundError: one of them is not installed.
        LicenceError: see :func:`licence`.
    """
    own = list(requirements)
    found: dict[str, Package] = {}
    always = set(_closure(_needed(own, ""), found))
    for extra in EXTRAS:
        for other in _closure(_needed(own, extra), found):
            if other not in always:
                found[other].extras.append(extra)
    wrong = [f"{package.name}: {package.licence}" for package in found.values() if not compatible(package.licence)]
    if wrong:
        raise LicenceError(f"laggard is under Apache-2.0 and cannot need {', '.join(wrong)}")
    return dict(sorted(found.items()))


def _needed(requirements: Iterable[str], extra: str) -> Iterator[Requirement]:
    for line in requirements:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _closure(wanted: Iterable[Requirement], found: dict[str, Package]) -> Iterator[str]:
    """Give each package that is needed, once, and add those that are new to ``found``."""
    waiting = list(wanted)
    seen: set[tuple[str, str]] = set()
    given: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        distribution = metadata.distribution(name)
        needs = found[name].needs if name in found else frozenset[str]()
        for extra in {"", *requirement.extras} - {extra for package, extra in seen if package == name}:
            seen.add((name, extra))
            further = list(_needed(distribution.requires or (), extra))
            waiting += further
            needs |= {canonicalize_name(other.name) for other in further}
        if name in found:
            found[name].needs = needs
        else:
            found[name] = Package(name, distribution.version, licence(distribution.metadata), needs)
        if name not in given:
            given.add(name)
            yield name


def licences(found: Mapping[str, Package], version: str) -> str:
    """Return the list of licences, as Markdown."""
    lines = [
        f"# What laggard {version} brings with it",
        "",
        "laggard is under Apache-2.0, and none of these travels in its wheel: pip installs them beside it.",
        "",
        "| package | version | licence | with |",
        "|---|---|---|---|",
    ]
    for package in found.values():
        extras = ", ".join(package.extras) or "every installation"
        lines.append(f"| {package.name} | {package.version} | {package.licence} | {extras} |")
    return "\n".join(lines) + "\n"


def bill(found: Mapping[str, Package], own: Package, made: datetime, seed: str) -> str:
    """Return the bill of materials of a package, as CycloneDX 1.6. The same ``seed`` gives the same serial number."""
    everything = [own, *found.values()]
    references = {package.name: f"{package.name}=={package.version}" for package in everything}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, seed).urn,
        "version": 1,
        "metadata": {
            "timestamp": made.isoformat(),
            "component": {"type": "application", **_component(own)},
        },
        "components": [
            {
                "type": "library",
                **_component(package),
                "scope": "optional" if package.extras else "required",
                "properties": [{"name": "laggard:extra", "value": extra} for extra in package.extras],
            }
            for package in found.values()
        ],
        "dependencies": [
            {"ref": references[package.name], "dependsOn": sorted(references[name] for name in package.needs)}
            for package in everything
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _component(package: Package) -> dict[str, Any]:
    one = " " not in package.licence
    return {
        "bom-ref": f"{package.name}=={package.version}",
        "name": package.name,
        "version": package.version,
        "licenses": [{"license": {"id": package.licence}} if one else {"expression": package.licence}],
        "purl": f"pkg:pypi/{package.name}@{package.version}",
    }
