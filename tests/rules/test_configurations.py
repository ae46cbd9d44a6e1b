"""The example configurations of Prometheus and Alertmanager load, and do what they say."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from laggard_cli.rules.render import rule_files
from tests.rules.conftest import TOOLS, VERSIONS
from tests.rules.pack import ROOT, alerts

PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("file", sorted(PROMETHEUS.parent.glob("*.yml")), ids=lambda file: file.stem)
def test_prometheus_loads_it(promtool: Path, file: Path) -> None:
    """Every version loads the configuration, with all rule files."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    (pattern,) = content["rule_files"]
    if "runtime" in content and promtool == TOOLS.get(VERSIONS[0]):
        pytest.skip("from 2.53 on, as the file says")
    _run(promtool, "check", "config", file)
    assert {path.name for path in file.parent.glob(pattern)} == set(rule_files())


def test_alertmanager_loads_it() -> None:
    """Alertmanager loads the configuration."""
    _run("amtool", "check-config", ALERTMANAGER)


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["training_run=a", "severity=critical"], "page"),
        (["training_run=a", "severity=warning"], "default"),
        (["training_run=a", "severity=info"], "nobody"),
        (["training_run=a\nb", "severity=critical"], "page"),
        (["severity=critical"], "default"),
        (["severity=info"], "nobody"),
        (["alertname=LaggardWatchdog", "severity=info"], "watchdog"),
        (["alertname=Other", "severity=warning"], "default"),
    ],
)
def test_routes(labels: list[str], receiver: str) -> None:
    """A critical alert of a run goes to the pager, a warning does not, context calls nobody; the watchdog is apart."""
    route = ["amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}"]
    assert _run(*route, *labels).strip() == receiver


def _inhibitions() -> list[tuple[set[str], set[str], set[str], list[set[str]]]]:
    """Return sources, targets and compared labels of each rule, and which labels each side demands."""
    found: list[tuple[set[str], set[str], set[str], list[set[str]]]] = []
    for rule in yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))["inhibit_rules"]:
        names: list[set[str]] = []
        demanded: list[set[str]] = []
        for side in ("source_matchers", "target_matchers"):
            first, *others = rule[side]
            label, text = re.split("=~?", first, maxsplit=1)
            values = set(json.loads(text).split("|"))
            kinds = {rule.name for rule in alerts() if rule.labels["training_kind"] in values}
            names.append(kinds if label == "training_kind" else values)
            assert all(other.endswith('!=""') for other in others)
            demanded.append({other.removesuffix('!=""') for other in others})
        found.append((names[0], names[1], set(rule["equal"]), demanded))
    return found


def test_an_inhibition_is_by_severity() -> None:
    """What inhibits is as severe as what it inhibits, and both are alerts of the pack."""
    rank = {"info": 0, "warning": 1, "critical": 2}
    severity = {rule.name: rank[rule.labels["severity"]] for rule in alerts()}
    for sources, targets, _, _ in _inhibitions():
        assert min(severity[name] for name in sources) >= max(severity[name] for name in targets), sources


def test_an_inhibition_needs_the_labels_that_it_compares() -> None:
    """Two alerts that both lack a label are not alike in it, but in their cluster; a run is always compared, in one."""
    for _, _, equal, demanded in _inhibitions():
        assert demanded == [equal - {"cluster"}] * 2
        assert {"cluster", "training_run"} <= equal


def test_no_two_alerts_inhibit_each_other() -> None:
    """A cause is not its symptom's symptom, over any number of steps: else all could be silent."""
    symptoms: dict[str, set[str]] = {}
    for sources, targets, _, _ in _inhibitions():
        for source in sources:
            symptoms.setdefault(source, set()).update(targets)
    for start, direct in symptoms.items():
        seen: set[str] = set()
        ahead = set(direct)
        while ahead:
            name = ahead.pop()
            seen.add(name)
            ahead |= symptoms.get(name, set()) - seen
        assert start not in seen
