"""``laggard rules check``: one line for each mistake in a file of overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from laggard_cli.main import main
from laggard_cli.rules.check import mistakes, overridable
from tests.rules.pack import rules

NAMES = overridable()

GOOD = """
groups:
  - name: mine
    interval: 1m
    rules:
      - {record: laggard_threshold_override, labels: {name: straggler_score, training_run: a}, expr: vector(1.5)}
      - {record: laggard_threshold_override, labels: {name: straggler_score, training_run: b}, expr: 1.3}
      - {record: laggard_threshold_override, labels: {name: stall_seconds, training_run: a}, expr: max(my_limit)}
"""


def test_names_are_those_that_the_pack_reads() -> None:
    """What may be overridden is what some rule compares with, run by run."""
    given = {"gpu_hour_price", "carbon_grams_per_kwh", "power_overhead", "peak_flops"}
    assert {rule.labels["name"] for rule in rules() if rule.name == "run:laggard_threshold:value"} | given == NAMES
    assert {"straggler_score", "stage_score", "stall_seconds"} <= NAMES


def test_good_files_have_no_mistake() -> None:
    """Numbers, vectors and expressions of one's own are fine, and so is the example of the README."""
    assert list(mistakes(GOOD, NAMES)) == []
    readme = (Path(__file__).parents[2] / "rules" / "README.md").read_text(encoding="utf-8")
    example = readme.partition("## A threshold for one run")[2].split("```")[1].removeprefix("yaml\n")
    assert list(mistakes(example, NAMES)) == []


def _file(**changes: object) -> str:
    """Return a file of one rule with other fields; None takes a field away."""
    rule: dict[str, object] = {
        "record": "laggard_threshold_override",
        "labels": {"name": "straggler_score", "training_run": "a"},
        "expr": "vector(1.5)",
        **changes,
    }
    fields = {key: value for key, value in rule.items() if value is not None}
    return yaml.safe_dump({"groups": [{"name": "mine", "rules": [fields]}]})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("groups: [", "no YAML: while parsing a flow node expected the node content, but found '<stream end>' "),
        ("[" * 100_000, "no rule file: its lists are nested too deeply"),
        ("rules: []", "no list of groups; a rule file begins with 'groups:'"),
        ("groups: [{name: mine}]", "group mine: no list of rules"),
        ("groups: [7]", "group 1: no list of rules"),
        ("groups: [{rules: []}]", "group 1: no name; Prometheus refuses the file"),
        (
            "groups: [{name: mine, every: 1m, rules: []}]",
            "group mine: no field 'every'; there are interval, labels, limit, name, query_offset, rules",
        ),
        (
            _file(record="laggard_threshold"),
            (
                "group mine, rule 1: records 'laggard_threshold'; a file of overrides records "
                "laggard_threshold_override alone"
            ),
        ),
        (_file(value=2), "group mine, rule 1: no field 'value'; there are expr, labels, record"),
        (_file(labels=None), "group mine, rule 1: no labels; write labels: {name: THRESHOLD, training_run: RUN}"),
        (
            _file(labels={"name": "stragler_score", "training_run": "a"}),
            "group mine, rule 1: no threshold 'stragler_score' that a run may override; did you mean straggler_score?",
        ),
        (
            _file(labels={"name": "window_steps", "training_run": "a"}),
            "group mine, rule 1: no threshold 'window_steps' that a run may override; ",
        ),
        (
            _file(labels={"name": "straggler_score"}),
            "group mine, rule 1: no label training_run; name one run, in quotes if it is a number",
        ),
        (
            _file(labels={"name": "straggler_score", "training_run": 7}),
            "group mine, rule 1: training_run is 7; name one run, in quotes if it is a number",
        ),
        (
            _file(labels={"name": "straggler_score", "training_run": "a", "team": "x"}),
            "group mine, rule 1: label team has no meaning here; remove it",
        ),
        (_file(expr=None), "group mine, rule 1: no expr; write expr: vector(NUMBER)"),
        (_file(expr="vector(1.5"), "group mine, rule 1: expr must be PromQL, got 'vector(1.5': "),
        (
            _file(expr="vector(0.9)"),
            "group mine, rule 1: straggler_score is 0.9; a score is a ratio above 1, as 1.2 for a fifth longer",
        ),
        (
            _file(labels={"name": "input_bound_share", "training_run": "a"}, expr=20),
            "group mine, rule 1: input_bound_share is 20; a share lies between 0 and 1",
        ),
        (
            _file(labels={"name": "stall_seconds", "training_run": "a"}, expr="vector(0)"),
            "group mine, rule 1: stall_seconds is 0; it must be above 0",
        ),
    ],
)
def test_each_mistake_is_one_line(text: str, line: str) -> None:
    """A mistake is told once: where it is, what stands there, and what to do."""
    (found,) = mistakes(text, NAMES)
    assert found.startswith(line)
    assert "\n" not in found


def test_doubled_overrides_are_told() -> None:
    """Two overrides of one threshold of one run contradict each other."""
    doubled = GOOD.replace("training_run: b", "training_run: a")
    assert list(mistakes(doubled, NAMES)) == [
        "group mine, rule 2: overrides straggler_score of a again, as group mine, rule 1 does; remove one"
    ]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files are checked, each mistake is a line with its file, and the exit code says whether there was one."""
    good, bad = tmp_path / "good.yml", tmp_path / "bad.yml"
    good.write_text(GOOD, encoding="utf-8")
    bad.write_text(_file(value=2, expr="vector(1)"), encoding="utf-8")
    assert main(["rules", "check", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: no mistake\n"
    assert main(["rules", "check", str(bad), str(good)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{good}: no mistake\n"
    first, second, last = said.err.splitlines()
    assert first.startswith(f"{bad}: group mine, rule 1: no field 'value'")
    assert second.startswith(f"{bad}: group mine, rule 1: straggler_score is 1;")
    assert last.endswith("2 mistakes in the overrides")
    assert main(["rules", "check", str(tmp_path / "none.yml")]) == 2
    assert f"{tmp_path / 'none.yml'}: No such file or directory" in capsys.readouterr().err
