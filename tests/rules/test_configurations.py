"""The example configurations of Prometheus and Alertmanager load, and do what they say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import yaml

from laggard_cli.rules.render import rule_files
from tests.rules.pack import ROOT, alerts

PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_loads_it(promtool: Path) -> None:
    """Every version loads the configuration, with all rule files."""
    _run(promtool, "check", "config", PROMETHEUS)
    (pattern,) = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))["rule_files"]
    assert {path.name for path in PROMETHEUS.parent.glob(pattern)} == set(rule_files())


def test_alertmanager_loads_it() -> None:
    """Alertmanager loads the configuration."""
    _run("amtool", "check-config", ALERTMANAGER)


def test_routes() -> None:
    """A critical alert of a run goes to the pager; a warning, or an alert without a run, does not."""
    route = ["amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}"]
    assert _run(*route, "training_run=a", "severity=critical").strip() == "page"
    assert _run(*route, "training_run=a", "severity=warning").strip() == "default"
    assert _run(*route, "severity=critical").strip() == "default"


def test_inhibition_is_by_severity() -> None:
    """What inhibits is as severe as what it inhibits."""
    severity = {rule.name: rule.labels["severity"] for rule in alerts()}
    (rule,) = yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))["inhibit_rules"]
    sides: list[set[str]] = []
    for side in ("source_matchers", "target_matchers"):
        names, run = rule[side]
        assert run == 'training_run=~".+"'
        sides.append(set(json.loads(names.removeprefix("alertname=~")).split("|")))
    sources, targets = sides
    assert {severity[name] for name in sources} == {"critical"}
    assert {severity[name] for name in targets} == {"warning"}
