"""The pack in other forms: the same rules, in the structure that each system reads; and with other label names."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import _gojsonnet as jsonnet
import pytest
import yaml

from laggard_cli.errors import CommandError
from laggard_cli.labels import parse_names, renamed
from laggard_cli.main import main
from laggard_cli.pack import pack_folder
from laggard_cli.rules import render, rules_folder
from laggard_cli.rules.beside import alertmanager, dashboards
from laggard_cli.rules.formats import merged
from laggard_cli.rules.profiles import load_profile
from laggard_cli.rules.render import render_pack, rule_files
from tests.rules.conftest import NEWEST

#: Mimir's defaults for one tenant: ruler.max-rules-per-rule-group and ruler.max-rule-groups-per-tenant.
MOST_RULES, MOST_GROUPS = 20, 70

FAST_TESTS = Path(__file__).with_name("fast.yml")


@functools.cache
def _loaded(form: str) -> dict[str, Any]:
    return {name: yaml.safe_load(text) for name, text in render(form=form).items()}


@functools.cache
def _groups() -> dict[str, list[Any]]:
    return {name: content["groups"] for name, content in _loaded("prometheus").items()}


def _passes(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_operator_reads_manifests() -> None:
    """Each file is one PrometheusRule: kind and version, a name that Kubernetes takes, and the groups as they are."""
    manifests = _loaded("operator")
    groups = _groups()
    assert list(manifests) == list(groups)
    for name, manifest in manifests.items():
        assert (manifest["apiVersion"], manifest["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
        assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
        assert re.fullmatch(r"laggard-[a-z]+(-[a-z]+)*", manifest["metadata"]["name"])
        assert manifest["metadata"]["labels"] == {"prometheus": "k8s", "role": "alert-rules"}
        assert manifest["spec"] == {"groups": groups[name]}


def test_mimir_reads_namespaces() -> None:
    """Each file is a namespace of its own with the groups as they are, within the limits of a tenant."""
    namespaces = _loaded("mimir")
    groups = _groups()
    assert {name: content["groups"] for name, content in namespaces.items()} == groups
    assert len({content["namespace"] for content in namespaces.values()}) == len(groups)
    assert sum(len(each) for each in groups.values()) <= MOST_GROUPS
    assert max(len(group["rules"]) for each in groups.values() for group in each) <= MOST_RULES


def _mixin(folder: Path, configuration: str = "{}") -> dict[str, Any]:
    """Return what the mixin in a folder makes of a configuration."""

    def load(base: str, name: str) -> tuple[str, bytes]:
        path = Path(base or folder) / name
        return str(path), path.read_bytes()

    source = (
        f"local mixin = (import 'mixin.libsonnet') {{ _config+:: {configuration} }};"
        "{ alerts: mixin.prometheusAlerts.groups, rules: mixin.prometheusRules.groups }"
    )
    return json.loads(jsonnet.evaluate_snippet("test", source, import_callback=load))


def test_mixin_has_the_same_groups(tmp_path: Path) -> None:
    """The mixin's alerts and rules together are the pack; labels can be set, and thresholds that exist."""
    for name, text in render(form="jsonnet").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = _mixin(tmp_path)
    everything = {group["name"]: group for groups in _groups().values() for group in groups}
    assert {group["name"]: group for kind in found.values() for group in kind} == everything
    # With the steps before them: they are evaluated together.
    assert all(any("alert" in rule for rule in group["rules"]) for group in found["alerts"])

    found = _mixin(tmp_path, "{ thresholds: { straggler_score: 1.3 }, labels: { cluster: 'east' } }")
    rules = [rule for kind in found.values() for group in kind for rule in group["rules"]]
    assert all(rule["labels"]["cluster"] == "east" for rule in rules)
    (threshold,) = [
        rule
        for rule in rules
        if rule.get("record") == "laggard_threshold" and rule["labels"]["name"] == "straggler_score"
    ]
    assert threshold["expr"] == "vector(1.3)"
    with pytest.raises(RuntimeError, match="laggard has no threshold stragler_score"):
        _mixin(tmp_path, "{ thresholds: { stragler_score: 1.3 } }")


@pytest.mark.parametrize("form", ["operator", "mimir"])
def test_prometheus_accepts_what_is_inside(promtool: Path, tmp_path: Path, form: str) -> None:
    """The groups of each form pass promtool with every lint as an error."""
    files: list[Path] = []
    for name, content in _loaded(form).items():
        files.append(tmp_path / name)
        groups = content["spec"]["groups"] if form == "operator" else content["groups"]
        files[-1].write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    _passes(promtool, "check", "rules", "--lint=all", "--lint-fatal", *files)


@pytest.mark.parametrize("promtool", [NEWEST], indirect=True)
def test_other_label_names(promtool: Path, tmp_path: Path) -> None:
    """With other names for run, rank and host the same verdicts come under these names, and no old one is left.

    In one version of Prometheus: under the pack's own names the same tests run in each.
    """
    names = {"cluster": "site", "training_run": "run_id", "training_rank": "rank", "host_name": "node"}
    folder = tmp_path / "rules"
    folder.mkdir()
    for name, text in render("fast", labels=names).items():
        (folder / name).write_text(text, encoding="utf-8")
        for rule in (rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]):
            annotations = " ".join(rule.get("annotations", {}).values())
            annotations = re.sub("var-(training_run|cluster)=", "", annotations)
            # node_exporter's adapter makes the label, under its new name too.
            assert not names.keys() & set(re.findall(r"[a-zA-Z_:][\w:]*", rule["expr"] + annotations))
    tests = FAST_TESTS.read_text(encoding="utf-8")
    for old, new in names.items():
        tests = re.sub(rf"\b{old}\b", new, tests)
    (tmp_path / "fast.yml").write_text(tests, encoding="utf-8")
    _passes(promtool, "test", "rules", tmp_path / "fast.yml")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("job=x", "label 'job=x': 'job' cannot be renamed; give OLD=NEW with cluster, training_run, training_rank"),
        ("training_run", "--label must be OLD=NEW with names of labels, got 'training_run'"),
        ("training_run=run-id", "--label must be OLD=NEW with names of labels, got 'training_run=run-id'"),
        ("training_run=uuid", "label 'training_run=uuid': two labels would be called uuid"),
    ],
)
def test_wrong_label_names_are_refused(pair: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A label that is not there, a name that is none, and one that is taken are errors in one line."""
    with pytest.raises(CommandError) as refused:
        parse_names([pair])
    assert str(refused.value).startswith(message)
    assert main(["rules", "render", "--output", "/nowhere", "--label", pair]) == 2
    assert capsys.readouterr().err.startswith(f"laggard rules: error: {message}")


def test_values_keep_their_names() -> None:
    """A label has another name wherever an expression names it; what a run or a cluster is called stays."""
    names = {"cluster": "site", "training_run": "run_id"}
    expr = 'max by (cluster) (label_replace(a{training_run="cluster", cluster=~ \'cluster\'}, "cluster", "x", "", ""))'
    assert renamed(expr, names) == (
        'max by (site) (label_replace(a{run_id="cluster", site=~ \'cluster\'}, "site", "x", "", ""))'
    )


def test_dashboards_and_alertmanager_have_the_names_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Queries, columns and legends of dashboards, and what Alertmanager compares; variables of dashboards stay."""
    boards, file = tmp_path / "boards", tmp_path / "alertmanager" / "alertmanager.yml"
    names = ["--label", "cluster=site", "--label", "training_rank=rank"]
    arguments = ["--output", str(tmp_path / "rules"), "--dashboards", str(boards), "--alertmanager", str(file)]
    assert main(["rules", "render", *arguments, *names]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [f"{len(dashboards({}))} dashboards in {boards}", f"Alertmanager's configuration in {file}"]

    text = (boards / "laggard-ranks.json").read_text(encoding="utf-8")
    board = json.loads(text)
    assert [each["name"] for each in board["templating"]["list"]][:3] == ["datasource", "cluster", "training_run"]
    assert board["templating"]["list"][2]["query"]["query"] == (
        'label_values(run:training_ranks_expected:max{site="$cluster"}, training_run)'
    )
    assert 'site=\\"$cluster\\"' in text
    assert not re.search(r'(?<!\$)(?<!"name": ")(?<!"refId": ")\b(cluster|training_rank)\b', text)
    assert json.loads(dashboards({})["laggard-ranks.json"]) != board

    given = pack_folder("deploy/alertmanager").joinpath("alertmanager.yml").read_text(encoding="utf-8")
    assert alertmanager({}) == given
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert content["route"]["routes"][1]["group_by"] == ["site", "training_run"]
    assert all(each["equal"][0] == "site" for each in content["inhibit_rules"])
    assert "training_rank" not in {label for each in content["inhibit_rules"] for label in each["equal"]}


def test_forms_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes the files of a form."""
    arguments = ["--output", str(tmp_path), "--format", "jsonnet", "--label", "training_run=run_id"]
    assert main(["rules", "render", *arguments]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {*rule_files(), "mixin.libsonnet"}
    assert f"in {tmp_path}" in capsys.readouterr().out
    assert "run_id" in (tmp_path / "alert.yml").read_text(encoding="utf-8")


def test_merged_rules_stand_in_the_order_of_their_layers() -> None:
    """Each rule once, and before those that read it where the layers say so; one group for each interval."""
    pack = render_pack(load_profile(rules_folder(), "local"))
    groups = yaml.safe_load(merged(pack, "local"))["groups"]
    assert [group["name"] for group in groups] == [f"laggard-merged-local-{group['interval']}" for group in groups]
    assert len({group["interval"] for group in groups}) == len(groups)
    for group in groups:
        assert group["rules"] == [
            rule
            for content in pack.values()
            for each in content["groups"]
            if each["interval"] == group["interval"]
            for rule in each["rules"]
        ]
    assert sum(len(group["rules"]) for group in groups) == sum(
        len(each["rules"]) for content in pack.values() for each in content["groups"]
    )
