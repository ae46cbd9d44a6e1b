"""The manifests for Kubernetes as kustomize and helm render them, and the schemas that they must pass."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jsonschema
import kubernetes_validate
import yaml

from laggard_cli.main import main
from tests.collector.support import ROOT, TIMEOUT, missing

MANIFESTS = ROOT / "deploy" / "kubernetes" / "base"
WITH_GPUS = MANIFESTS.parent / "gpu"
CHART = MANIFESTS.parent / "helm"
DASHBOARDS = ROOT / "dashboards"
#: Where the chart puts what it deploys: the namespace of the manifests.
NAMESPACE = "laggard"
#: The oldest release that the manifests are for, and the newest whose schema can be had.
VERSIONS = ("1.30", "1.37")

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Return where a program is that the tests of the manifests need."""
    found = shutil.which(name, path=f"{ROOT / '.cache' / 'tools' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        missing(f"{name} is missing: scripts/tools/build_kubernetes_tools.sh, which needs Go")
    return str(found)


def definition(name: str) -> Path:
    """Return a file with the definition of custom resources."""
    found = sorted((ROOT / ".cache" / "tools").glob(f"*/{name}"))
    if not found:
        missing(f"{name} is missing: scripts/tools/build_kubernetes_tools.sh, which needs Go")
    return found[-1]


def rendered(folder: Path) -> list[Manifest]:
    """Return what kustomize makes of a folder."""
    done = subprocess.run(
        [tool("kustomize"), "build", folder], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, _LOADER))


def rules(folder: Path) -> list[Manifest]:
    """Return what ``laggard rules render`` writes into a folder for the operator."""
    assert main(["rules", "render", "--format", "operator", "--output", str(folder)]) == 0
    return [yaml.load(file.read_text(), _LOADER) for file in sorted(folder.glob("*.yml"))]


def helm(
    *arguments: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run helm, with these variables, without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    return subprocess.run(
        [tool("helm"), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        cwd=cwd,
        env={**kept, **(environment or {})},
    )


def template(*arguments: str | Path, chart: Path = CHART) -> list[Manifest]:
    """Return what helm renders of the chart."""
    done = helm("template", "laggard", chart, "--namespace", NAMESPACE, *arguments)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, _LOADER))


def by_identity(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Return manifests by kind and name."""
    found = {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in manifests}
    assert found
    return found


@functools.cache
def operator_schema(kind: str) -> dict[str, Any]:
    """Return the schema of one of the Prometheus operator's resources, in which what is unknown is refused."""
    text = definition(f"monitoring.coreos.com_{kind.lower()}s.yaml").read_text()
    schema = yaml.load(text, _LOADER)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}

    def close(part: Any) -> None:
        if isinstance(part, dict):
            node = cast("dict[str, Any]", part)
            if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
                node.setdefault("additionalProperties", False)
            for value in node.values():
                close(value)
        elif isinstance(part, list):
            for value in cast("list[Any]", part):
                close(value)

    close(schema)
    return schema


def validate(document: Manifest) -> None:
    """Hold a document against the schemas; raises for what Kubernetes would refuse, or not know."""
    if document["apiVersion"].startswith("monitoring.coreos.com"):
        jsonschema.Draft202012Validator(operator_schema(document["kind"])).validate(document)
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


#: Half a megabyte of rules takes the one that is written in Python seconds.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
