"""The Helm chart, by the real helm: it deploys what the manifests do, and a value changes what its name says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from laggard.version import __version__
from tests.collector.support import ROOT
from tests.deploy.manifests import (
    CHART,
    DASHBOARDS,
    MANIFESTS,
    NAMESPACE,
    WITH_GPUS,
    Manifest,
    by_identity,
    helm,
    rendered,
    rules,
    template,
    validate,
)

DAEMON = "DaemonSet/laggard-exporter/spec/template"
EXPORTER = f"{DAEMON}/spec/containers/0"
#: What a value changes in the default rendering, all of it: path to what is there then, None where nothing is left.
VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "image.repository": (
        "registry.example/exporter",
        {f"{EXPORTER}/image": f"registry.example/exporter:{__version__}"},
    ),
    "image.tag": ("next", {f"{EXPORTER}/image": "laggard-exporter:next"}),
    "image.pullPolicy": ("Always", {f"{EXPORTER}/imagePullPolicy": "Always"}),
    "initImage": ("busybox:1", {f"{DAEMON}/spec/initContainers/0/image": "busybox:1"}),
    "imagePullSecrets": ([{"name": "pull"}], {f"{DAEMON}/spec/imagePullSecrets/0/name": "pull"}),
    "exporter.extraArgs": (["--log.level=debug"], {f"{EXPORTER}/args/4": "--log.level=debug"}),
    "exporter.resources": (
        {"limits": {"memory": "1Gi"}},
        {
            f"{EXPORTER}/resources/limits/memory": "1Gi",
            f"{EXPORTER}/resources/requests/cpu": None,
            f"{EXPORTER}/resources/requests/memory": None,
        },
    ),
    "exporter.nodeSelector": ({"pool": "train"}, {f"{DAEMON}/spec/nodeSelector/pool": "train"}),
    "exporter.tolerations": (
        [{"key": "gpu", "operator": "Exists"}],
        {f"{DAEMON}/spec/tolerations/0/key": "gpu"},
    ),
    "exporter.affinity": ({"nodeAffinity": {}}, {f"{DAEMON}/spec/affinity/nodeAffinity": {}}),
    "exporter.priorityClassName": ("low", {f"{DAEMON}/spec/priorityClassName": "low"}),
    # A label that finds the pods stays as it is.
    "exporter.podLabels": (
        {"team": "vision", "app.kubernetes.io/name": "other"},
        {f"{DAEMON}/metadata/labels/team": "vision"},
    ),
    "exporter.podAnnotations": ({"note": "x"}, {f"{DAEMON}/metadata/annotations/note": "x"}),
    "networkPolicy.from": (
        [{"podSelector": {}}],
        {
            "NetworkPolicy/laggard-exporter/spec/ingress/0/from/0/namespaceSelector": None,
            "NetworkPolicy/laggard-exporter/spec/ingress/0/from/0/podSelector": {},
            "NetworkPolicy/laggard-exporter/spec/ingress/0/from/0/podSelector/matchLabels/app.kubernetes.io~name": None,
        },
    ),
    "monitors.labels": (
        {"release": "prometheus"},
        {f"PodMonitor/laggard-{name}/metadata/labels/release": "prometheus" for name in ("exporter", "ranks")},
    ),
    "rules.labels": (
        {"prometheus": None, "role": None, "release": "prometheus"},
        {
            f"PrometheusRule/laggard-{path.stem}/metadata/labels/{label}": value
            for path in (CHART / "files" / "rules").glob("*.yml")
            for label, value in (("prometheus", None), ("role", None), ("release", "prometheus"))
        },
    ),
    "dashboards.namespace": (
        "monitoring",
        {f"ConfigMap/{path.stem}/metadata/namespace": "monitoring" for path in DASHBOARDS.glob("json/*.json")},
    ),
    "dashboards.labels": (
        {"grafana_dashboard": "yes"},
        {f"ConfigMap/{path.stem}/metadata/labels/grafana_dashboard": "yes" for path in DASHBOARDS.glob("json/*.json")},
    ),
    "dashboards.annotations": (
        {"grafana_folder": "laggard"},
        {
            f"ConfigMap/{path.stem}/metadata/annotations/grafana_folder": "laggard"
            for path in DASHBOARDS.glob("json/*.json")
        },
    ),
}
#: Which kinds are left out when these are false; gpu.enabled has a test of its own.
KINDS = {
    "networkPolicy.enabled": "NetworkPolicy",
    "monitors.enabled": "PodMonitor",
    "rules.enabled": "PrometheusRule",
    "dashboards.enabled": "ConfigMap",
}


@pytest.fixture(scope="module")
def default() -> dict[str, Manifest]:
    """Render the chart as it is."""
    return by_identity(template())


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what stands at each end of a document, with its path."""
    if isinstance(value, (dict, list)) and value:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from leaves(entry, f"{path}/{str(key).replace('/', '~')}")
    else:
        yield path, value


def changes(before: dict[str, Manifest], after: dict[str, Manifest]) -> dict[str, Any]:
    """Return what is otherwise, None where something is gone."""
    old, new = (
        dict(entry for name, value in side.items() for entry in leaves(value, name)) for side in (before, after)
    )
    return {path: new.get(path) for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


def nested(name: str, value: Any) -> dict[str, Any]:
    """Return the content of a file of values that sets this one."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def parsed(manifest: Manifest) -> Manifest:
    """Return rules with their expressions in one layout: ``laggard rules render`` has its own, without comments."""
    groups = manifest["spec"]["groups"] if manifest["kind"] == "PrometheusRule" else []
    for rule in (rule for group in groups for rule in group["rules"]):
        rule["expr"] = promql_parser.parse(rule["expr"]).prettify()
    return manifest


@pytest.mark.parametrize(("folder", "options"), [(MANIFESTS, ()), (WITH_GPUS, ("--set", "gpu.enabled=true"))])
def test_it_deploys_what_the_manifests_do(folder: Path, options: tuple[str, ...], tmp_path: Path) -> None:
    """The chart renders what kustomize and ``laggard rules render`` do, but the namespace, which is helm's matter."""
    expected = by_identity([*rendered(folder), *rendered(DASHBOARDS), *map(parsed, rules(tmp_path))])
    del expected[f"Namespace/{NAMESPACE}"]
    for manifest in expected.values():
        manifest["metadata"].setdefault("namespace", NAMESPACE)
    found = by_identity(map(parsed, template(*options)))
    assert found.keys() == expected.keys()
    for name, manifest in expected.items():
        assert found[name] == manifest


@pytest.mark.parametrize("name", VALUES)
def test_a_value_changes_what_it_names_and_nothing_else(
    name: str, default: dict[str, Manifest], tmp_path: Path
) -> None:
    """Each value has its effect, all else is as it was, and Kubernetes knows what comes out."""
    value, expected = VALUES[name]
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(nested(name, value)))
    found = by_identity(template("--values", tmp_path / "values.yaml"))
    assert changes(default, found) == expected
    for identity in {"/".join(path.split("/")[:2]) for path in expected}:
        validate(found[identity])


@pytest.mark.parametrize("name", KINDS)
def test_each_part_can_be_left_out(name: str, default: dict[str, Manifest]) -> None:
    """Without a part its kind is gone, and the rest is as it was."""
    rest = {identity: manifest for identity, manifest in default.items() if manifest["kind"] != KINDS[name]}
    assert len(rest) < len(default)
    assert by_identity(template("--set", f"{name}=false")) == rest


def test_every_value_is_tried() -> None:
    """The tables above name each value of values.yaml, and the schema describes each."""
    names = {path[1:].replace("/", ".") for path, _ in leaves(yaml.safe_load((CHART / "values.yaml").read_text()), "")}
    names = {"rules.labels" if name.startswith("rules.labels.") else name for name in names}
    assert names == VALUES.keys() | KINDS.keys() | {"gpu.enabled"}
    described = json.loads((CHART / "values.schema.json").read_text())["properties"]
    for name in names:
        part, _, field = name.partition(".")
        assert not field or field in described[part]["properties"], name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gpu.enabled=maybe", "- at '/gpu/enabled': got string, want boolean"),
        ("gpus.enabled=true", "- at '': additional properties 'gpus' not allowed"),
        ("exporter.resource.limits.memory=1Gi", "- at '/exporter': additional properties 'resource' not allowed"),
        ("exporter.extraArgs[0]=debug", "- at '/exporter/extraArgs/0': 'debug' does not match pattern '^--'"),
        ("monitors.labels.release=7", "- at '/monitors/labels/release': got number, want string"),
        (
            "image.pullPolicy=always",
            "- at '/image/pullPolicy': value must be one of '', 'Always', 'IfNotPresent', 'Never'",
        ),
    ],
)
def test_a_wrong_value_is_one_line(setting: str, message: str) -> None:
    """What the chart does not know is refused, with its place and what is wanted there."""
    done = helm("template", "laggard", CHART, "--set", setting)
    assert done.returncode != 0
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if line.startswith("- ")] == [message]


def test_the_documented_commands_render() -> None:
    """Each ``helm upgrade --install`` of docs/kubernetes.md gives values that the chart knows."""
    text = (ROOT / "docs" / "kubernetes.md").read_text().replace("\\\n", "")
    commands = re.findall(r"^helm upgrade --install (.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        done = helm("template", *shlex.split(command, comments=True), cwd=ROOT)
        assert done.returncode == 0, done.stderr


def test_helm_finds_no_fault() -> None:
    """Helm's own linter is content, with warnings as errors."""
    done = helm("lint", "--strict", CHART, "--namespace", NAMESPACE)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_the_archive_is_whole(default: dict[str, Manifest], tmp_path: Path) -> None:
    """A packaged chart has the version of the commands, needs no checkout, and has nothing that it does not use."""
    done = helm("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    archive = tmp_path / f"laggard-{__version__}.tgz"
    alone = tmp_path / "elsewhere" / "chart.tgz"
    alone.parent.mkdir()
    shutil.move(archive, alone)
    assert by_identity(template(chart=alone)) == default
    with tarfile.open(alone) as content:
        assert not [entry.name for entry in content if entry.issym() or entry.islnk()]
        files = {name.partition("/files/")[2] for name in content.getnames()}
    assert files - {""} == {
        "dashboards.yaml",
        "gpu/kustomization.yaml",
        *(f"base/{path.name}" for path in MANIFESTS.iterdir()),
        *(f"dashboards/{path.name}" for path in DASHBOARDS.glob("json/*.json")),
        *(f"rules/{path.name}" for path in (CHART / "files" / "rules").glob("*.yml")),
    }
