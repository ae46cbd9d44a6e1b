"""Profiles: what rendering changes, what it keeps, and what it refuses."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from laggard_cli.main import main
from laggard_cli.rules import RulesError, render, rules_folder
from laggard_cli.rules.profiles import load_profile
from laggard_cli.rules.render import render_expression, rule_files
from tests.rules.conftest import NEWEST, VERSIONS
from tests.rules.pack import ROOT, RULES

FAST_TESTS = Path(__file__).with_name("fast.yml")
#: Versions between these have plays of their own, which ask for more.
ENDS = (VERSIONS[0], NEWEST)


@functools.cache
def _fast() -> dict[str, str]:
    return render("fast")


def _write(texts: dict[str, str], folder: Path) -> Path:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_production_is_the_pack_itself() -> None:
    """Rendering production changes nothing but layout: same groups, rules and order, same expressions."""
    texts = render("production")
    for name in rule_files():
        original = yaml.safe_load((RULES / name).read_text(encoding="utf-8"))
        rendered = yaml.safe_load(texts[name])
        for content in (original, rendered):
            for group in content["groups"]:
                for rule in group["rules"]:
                    rule["expr"] = promql.parse(rule["expr"]).prettify()
        assert rendered == original


def test_quick_keeps_trends_and_thresholds() -> None:
    """It is scraped three times as often, and leaves alone what is judged over a quarter of an hour or more."""
    quick = load_profile(RULES, "quick")
    for production, other in quick.durations.items():
        kept = production >= timedelta(minutes=15) and production != timedelta(minutes=20)
        assert other == production if kept else production / 3 <= other < production / 2
    assert quick.thresholds == {"stall_lead_seconds": 2}
    local = load_profile(RULES, "local")
    assert (local.durations, local.thresholds, local.scrape_interval) == (
        quick.durations,
        quick.thresholds,
        quick.scrape_interval,
    )


def _alerts(text: str) -> list[dict[str, Any]]:
    """Return the alerts of a file, less what leads to them."""
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if "alert" in rule]


def test_fast_changes_durations_and_thresholds_alone() -> None:
    """The fast profile has the rules of production, with other intervals, windows, waits and limits in seconds."""
    fast, production = _fast(), render("production")
    alerts = {}
    for profile, texts in (("fast", fast), ("production", production)):
        rules = _alerts(texts["alert-process.yml"])
        alerts[profile] = [(rule["alert"], rule["labels"], rule["annotations"]) for rule in rules]
        stalled = rules[0]
        assert stalled["for"] == {"fast": "1s", "production": "15s"}[profile]
        assert {"fast": "[8s]", "production": "[1m]"}[profile] in texts["alert-process.yml"]
    assert alerts["fast"] == alerts["production"]
    thresholds = {
        rule["labels"]["name"]: rule["expr"]
        for group in yaml.safe_load(fast["thresholds.yml"])["groups"]
        for rule in group["rules"]
        if rule["record"] == "laggard_threshold"
    }
    assert thresholds["stall_seconds"] == "vector(5)"
    assert thresholds["straggler_score"] == "vector(1.2)"


def test_fast_spares_no_evaluations() -> None:
    """What production evaluates less often for its cost, the fast profile evaluates as often as its neighbours."""
    pairs = {
        (before["interval"], after["interval"])
        for before_text, after_text in zip(render("production").values(), render("fast").values(), strict=True)
        for before, after in zip(
            yaml.safe_load(before_text)["groups"], yaml.safe_load(after_text)["groups"], strict=True
        )
    }
    assert pairs == {("1m", "8s"), ("2m", "8s"), ("5m", "30s"), *((each, "1s") for each in ("5s", "15s", "30s", "45s"))}


def test_large_spares_evaluations_alone() -> None:
    """The large profile is production but for the intervals of the groups that are not urgent."""
    pairs = set()
    for before_text, after_text in zip(render("production").values(), render("large").values(), strict=True):
        before, after = yaml.safe_load(before_text)["groups"], yaml.safe_load(after_text)["groups"]
        for was, now in zip(before, after, strict=True):
            pairs.add((was.pop("interval"), now.pop("interval")))
        assert after == before
    assert pairs == {("1m", "2m"), *((each, each) for each in ("5s", "15s", "30s", "45s", "2m", "5m"))}


@pytest.mark.parametrize("profile", ["production", "large"])
def test_windows_hold_what_was_recorded(profile: str) -> None:
    """No rule looks back for less time than passes between two evaluations of what it looks for: nothing flickers."""
    groups = [group for text in render(profile).values() for group in yaml.safe_load(text)["groups"]]
    recorded = [
        (rule["record"], rule.get("labels", {}), promql.parse_duration(group["interval"]))
        for group in groups
        for rule in group["rules"]
        if "record" in rule
    ]
    windows = 0
    for rule in (rule for group in groups for rule in group["rules"]):
        for name, labels, window in re.findall(r"\b(\w+(?::\w+)*)(?:\{([^}]*)\})?\[(\w+)\]", rule["expr"]):
            wanted = dict(re.findall(r'(\w+)=~?"([^"]*)"', labels))
            for record, has, interval in recorded:
                if record == name and all(re.fullmatch(wanted.get(key, ".*"), value) for key, value in has.items()):
                    windows += 1
                    assert promql.parse_duration(window) >= interval, f"{rule}: {name}"
    # Where there is no window, Prometheus takes what is up to five minutes old.
    assert max(interval for _, _, interval in recorded) <= timedelta(minutes=5)
    assert windows > 20


@pytest.mark.parametrize("profile", ["fast", "large"])
def test_rendered_loads(promtool: Path, tmp_path: Path, profile: str) -> None:
    """Prometheus loads the rendered files, in every version."""
    _write(render(profile), tmp_path)
    command = [promtool, "check", "rules", "--lint=all", "--lint-fatal", *(tmp_path / name for name in rule_files())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("promtool", ENDS, indirect=True)
def test_fast_names_a_straggler_and_a_stall(promtool: Path, tmp_path: Path) -> None:
    """In the fast profile a slow rank is named within half a minute, and a stall within ten seconds."""
    rules = tmp_path / "rules"
    rules.mkdir()
    _write(_fast(), rules)
    shutil.copy(FAST_TESTS, tmp_path)
    command = [promtool, "test", "rules", tmp_path / FAST_TESTS.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("promtool", ENDS, indirect=True)
def test_large_names_a_straggler_and_a_stall(promtool: Path, tmp_path: Path) -> None:
    """So are the same runs in the large profile, fifteen times as slow, and the stall within a minute of its limit."""
    rules = tmp_path / "rules"
    rules.mkdir()
    _write(render("large"), rules)
    tests = FAST_TESTS.read_text(encoding="utf-8")
    tests = re.sub(r"interval: 1s", "interval: 15s", tests)
    # No stall in the first sample after the last step, but three later.
    samples = {"64": 61, "70": 64}
    tests = re.sub(r"eval_time: (\d+)s", lambda time: f"eval_time: {15 * samples.get(time[1], int(time[1]))}s", tests)
    # What is an age or a time grows by fifteen seconds in each of them.
    tests = tests.replace("0.1x60 1+1x60", "0.1x60 1+15x60").replace("_x62 2+1x59", "_x62 30+15x59")
    (tmp_path / FAST_TESTS.name).write_text(tests, encoding="utf-8")
    command = [promtool, "test", "rules", tmp_path / FAST_TESTS.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_are_replaced() -> None:
    """A site may point the links of all alerts elsewhere."""
    texts = render(links={"dashboard_url": "https://grafana.example.com/d/"})
    rule = _alerts(texts["alert-process.yml"])[0]
    assert rule["annotations"]["dashboard_url"] == (
        "https://grafana.example.com/d/laggard-run?{{ with $labels.cluster }}var-cluster={{ . | urlquery }}&{{ end }}"
        "var-training_run={{ $labels.training_run | urlquery }}"
    )
    assert rule["annotations"]["runbook_url"].endswith("/rules/runbooks/TrainingStalled.md")
    with pytest.raises(RulesError, match="no link 'wiki_url'; alerts have runbook_url, dashboard_url"):
        render(links={"wiki_url": "https://wiki.example.com"})


def test_only_durations_change() -> None:
    """A label that reads like a duration stays what it is, and so does its quoting."""
    profile = load_profile(RULES, "fast")
    assert render_expression('max_over_time(a{b="[1m]", c=~"5m|x"}[1m]) > 60', profile, "here") == (
        'max_over_time(a{b="[1m]",c=~"5m|x"}[8s]) > 60'
    )


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("rate(a[7m])", "alert.yml, X: profiles.yaml has no duration 7m; add it there for each profile"),
        ("max_over_time(a[10m:1m])", "alert.yml, X: a subquery has no place in a rule; record the inner expression"),
        ("a offset 5m", "alert.yml, X: offset and @ are not rendered: a{} offset 5m"),
        ("sum(", "alert.yml, X: "),
    ],
)
def test_what_can_not_be_rendered_is_refused(expression: str, message: str) -> None:
    """A window that no profile knows, or one that rendering would miss, is an error that names the rule."""
    with pytest.raises(RulesError) as refused:
        render_expression(expression, load_profile(RULES, "fast"), "alert.yml, X")
    assert str(refused.value).startswith(message)


def test_unknown_waits_are_refused(tmp_path: Path) -> None:
    """So is an unknown interval, `for` or profile."""
    for name in (*rule_files(), "profiles.yaml"):
        shutil.copy(RULES / name, tmp_path)
    with pytest.raises(RulesError, match=r"no profile 'slow'; profiles.yaml has production, quick, local, fast, large"):
        render("slow", folder=tmp_path)
    alert = tmp_path / "alert-process.yml"
    text = alert.read_text(encoding="utf-8")
    alert.write_text(text.replace("for: 15s", "for: 25s", 1), encoding="utf-8")
    place = "alert-process.yml, group laggard-alert-process-stalled"
    with pytest.raises(RulesError, match=f"{place}, TrainingStalled: .* no duration 25s"):
        render("fast", folder=tmp_path)
    alert.write_text(text.replace("interval: 5s", "interval: 25s", 1), encoding="utf-8")
    with pytest.raises(RulesError, match=f"{place}: .* no duration 25s"):
        render("fast", folder=tmp_path)


def test_a_file_without_a_layer_is_refused(tmp_path: Path) -> None:
    """A rule file belongs to a layer by its name."""
    (tmp_path / "mine.yml").touch()
    with pytest.raises(
        RulesError, match=r"^mine.yml: belongs to no layer; call it LAYER-FAMILY.yml, with one of thresh"
    ):
        rule_files(tmp_path)


def test_each_duration_is_listed_once_and_used(tmp_path: Path) -> None:
    """The table has no line twice, and none that no rule needs."""
    table = yaml.safe_load((RULES / "profiles.yaml").read_text(encoding="utf-8"))
    text = "".join((RULES / name).read_text(encoding="utf-8") for name in rule_files())
    for row in table["durations"]:
        assert any(use.format(row["production"]) in text for use in ("[{}]", "for: {}\n", "interval: {}\n")), row
    shutil.copy(RULES / "profiles.yaml", tmp_path)
    with (tmp_path / "profiles.yaml").open("a", encoding="utf-8") as file:
        file.write("")
    doubled = (tmp_path / "profiles.yaml").read_text(encoding="utf-8")
    doubled = doubled.replace("durations:\n", "durations:\n  - {production: 60s, fast: 1s}\n")
    (tmp_path / "profiles.yaml").write_text(doubled, encoding="utf-8")
    with pytest.raises(RulesError, match="two lines for the duration 1m"):
        load_profile(tmp_path, "fast")


def test_the_pack_is_found_in_a_checkout() -> None:
    """Without a folder, the checkout's own rules are rendered."""
    assert rules_folder() == ROOT / "rules"


def test_a_pack_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a checkout ``--output rules`` would replace what it is made from, and what Prometheus reads there."""
    pack = tmp_path / "rules"
    shutil.copytree(RULES, pack)
    before = {path.name: path.read_bytes() for path in pack.glob("*.yml")}
    assert main(["rules", "render", "--profile", "fast", "--output", str(pack)]) == 2
    assert capsys.readouterr().err == (
        f"laggard rules: error: --output {pack}: it is a rule pack itself (profiles.yaml), which stays; "
        "name another folder\n"
    )
    assert {path.name: path.read_bytes() for path in pack.glob("*.yml")} == before


def test_what_an_update_leaves_behind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the pack that this version has no more would be evaluated beside it; a site's own files may stay."""
    group = "groups:\n  - name: {}\n    rules: []\n"
    for name, first in (("alert-gone.yml", "laggard-alert"), ("dcgm.yml", "laggard-optional-dcgm"), ("own.yml", "own")):
        (tmp_path / name).write_text(group.format(first), encoding="utf-8")
    assert main(["rules", "render", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().err == (
        f"laggard rules render: remove alert-gone.yml from {tmp_path}: rules of another version or form\n"
    )
