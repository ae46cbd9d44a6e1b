"""What promtool does not see: each check holds for the pack, and finds the mistake that it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import promql_parser as promql
import pytest

from laggard_cli.rules.profiles import load_profile
from tests.rules import lint
from tests.rules.pack import ROOT, RULES, Labels, Rule, alerts, known, rules

ALERT = Rule("alert.yml", "laggard-x", "TrainingX", "a > 1", is_alert=True)
RECORD = Rule("score.yml", "laggard-x", "run:training_x_seconds:mean", "a", is_alert=False)
POSITIVE = lint.positive_names(rules())
PRODUCTION = load_profile(RULES, "production").scrape_interval


def _mistakes(rule: Rule) -> Iterator[str]:
    yield from lint.can_be_false(rule)
    yield from lint.windows(rule, PRODUCTION)
    yield from lint.picks(rule)
    yield from lint.counters(rule)
    yield from lint.units(rule)
    yield from lint.clusters(rule)
    yield from lint.overwrites(rule)
    yield from lint.unknown_labels(rule)
    yield from lint.divides_by_zero(rule, POSITIVE)


def test_the_pack_has_no_mistake() -> None:
    """Comparisons, windows, picking aggregations, counters and units are as they must be."""
    assert [f"{rule}: {mistake}" for rule in rules() for mistake in _mistakes(rule)] == []


@pytest.mark.parametrize(
    ("expr", "passes"),
    [
        ("a / b", False), ("a / (b > 0)", True), ("a / (b >= 0)", False), ("a / (b > bool 0)", False),
        ("a / count(b)", True), ("a / sum(rate(b_total[1m]))", False), ("a / sum(rate(b_total[1m]) > 0)", True),
        ("a / kept", True), ("a / max_over_time(kept[5m])", True), ("a / (kept or b)", False), ("a / 60", True),
        ("a / 0", False), ("a / clamp_min(b, 1)", True), ("a / (1 - clamp(b, 0, 0.9))", True), ("a / (1 - b)", False),
        ("a % b", False), ("max(rate(a_sum[1m]) / rate(a_count[1m])) > 0", True),
        ("sum(rate(a_sum[1m]) / rate(a_count[1m])) > 0", False), ("rate(a_sum[1m]) / rate(a_count[1m]) != 0", False),
        ("rate(a_sum[1m]) / rate(a_total[1m]) > 0", False), ("rate(a_sum[1m]) / rate(a_count[1m]) > bool 0", False),
        ("(rate(a_sum[1m]) / rate(a_count[1m]) or b) > 0", False),
    ],
)  # fmt: skip
def test_divisions(expr: str, *, passes: bool) -> None:
    """A denominator that may be 0 is found; one that is kept above 0, here or where it is recorded, passes."""
    names = lint.positive_names([replace(RECORD, name="kept", expr="a > 0"), RECORD])
    assert names == {"kept"}
    assert (list(lint.divides_by_zero(replace(RECORD, expr=expr), names)) == []) is passes


def test_no_comparison() -> None:
    """An alert on whatever exists is found; a recording rule may be one."""
    assert list(lint.can_be_false(replace(ALERT, expr="sum by (x) (a) / b"))) == ["compares nothing"]
    assert list(lint.can_be_false(replace(ALERT, expr="a unless b"))) == []
    assert list(lint.can_be_false(RECORD)) == []


def test_a_label_that_an_annotation_does_not_see() -> None:
    """A template has the labels of the expression, and neither those that the rule adds nor any other."""
    rank = "{{ $labels.training_rank }}"
    expr = "max by (training_rank) (training_loss) > 1"
    said = replace(ALERT, expr=expr, labels={"link": "width"}, annotations={"summary": rank})
    assert list(lint.unknown_labels(said)) == []
    said = replace(said, annotations={"summary": "{{ $labels.link }} of {{ with $labels.y }}{{ . }}{{ end }}"})
    assert list(lint.unknown_labels(said)) == [f"says {label}, which its expression has not" for label in ("link", "y")]


def test_short_windows() -> None:
    """A window of three scrapes is found wherever it stands."""
    short = replace(RECORD, expr="max(rate(a_total[45s]) / rate(b_total[1m]))")
    assert list(lint.windows(short, PRODUCTION)) == ["window 45s holds fewer than 4 scrapes"]


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("topk(3, a) > 1", ["rests on topk, which picks other series each time"]),
        ("max(bottomk by (run) (1, a)) > 1", ["rests on bottomk, which picks other series each time"]),
        ("a and topk(1, b) > 0", ["rests on topk, which picks other series each time"]),
        ("a * on (run) group_left (host) topk by (run) (1, b) > 1", []),
        ("topk by (run) (1, b) * on (run) group_right () a > 1", []),
        ("topk by (run) (1, b) * on (run) a > 1", ["rests on topk, which picks other series each time"]),
    ],
)
def test_picking(expr: str, found: list[str]) -> None:
    """In an alert topk has a place on the one side of a join alone."""
    assert list(lint.picks(replace(ALERT, expr=expr))) == found


def test_rates_of_gauges() -> None:
    """The rate of a gauge is found, and the increase of anything else that does not count."""
    assert list(lint.counters(replace(RECORD, expr="rate(a_seconds[1m])"))) == [
        "rate of a_seconds, which is no counter"
    ]
    assert list(lint.counters(replace(RECORD, expr="increase(a_seconds_sum[1m]) + deriv(a[5m])"))) == []


@pytest.mark.parametrize(
    ("expr", "meets"),
    [
        ("max by (cluster, x) (a)", False), ("max by (x) (a)", True), ("max(a)", True), ("max without (x) (a)", False),
        ("max(laggard_threshold)", False), ("a > scalar(a)", True), ("a > scalar(max(laggard_threshold))", False),
        ("a and on (cluster, x) b", False), ("a and on (x) b", True), ("a and on () b", True), ("a and b", False),
        ("a + on () group_left () max(laggard_threshold)", False), ("a / ignoring (x) b", False),
        ('a and on (name) laggard_threshold{name="x"}', False),
    ],
)  # fmt: skip
def test_clusters(expr: str, *, meets: bool) -> None:
    """Two clusters meet where a list of labels has no cluster, unless it is of what is one for all."""
    assert bool(list(lint.clusters(replace(RECORD, expr=expr)))) is meets


def test_clusters_in_queries() -> None:
    """A query of an annotation names the cluster of its alert."""
    text = (
        '{{ with printf "max(a{QUERYx=%q})" $labels.x | query }}{{ end }}{{ with query "laggard_threshold" }}{{ end }}'
    )
    for given, meets in (("", True), ("cluster=%q,", False)):
        rule = replace(RECORD, annotations={"description": text.replace("QUERY", given)})
        assert bool(list(lint.clusters(rule))) is meets


def test_overwritten_labels() -> None:
    """A label that the series have is found, whatever its value; one that a list leaves out is none of theirs."""
    expr = "max by (cluster, training_run, training_phase) (training_phase_duration_seconds_sum)"
    labeled = replace(RECORD, labels={"training_phase": "data"}, expr=expr)
    assert list(lint.overwrites(labeled)) == ["overwrites training_phase"]
    assert list(lint.overwrites(replace(labeled, expr=f"max by (training_run) ({expr})"))) == []
    assert list(lint.overwrites(replace(labeled, labels={"training_cause": "data"}))) == []


def test_units() -> None:
    """A recorded name in another unit than the base unit is found, as a whole word."""
    assert list(lint.units(replace(RECORD, name="run:training_x_ms:mean"))) == ["ms is no base unit"]
    assert list(lint.units(replace(RECORD, name="gpu:gpu_clock_mhz:mean"))) == ["mhz is no base unit"]
    assert list(lint.units(replace(RECORD, name="run:training_forms_seconds:mean"))) == []


@pytest.mark.parametrize("rule", alerts(), ids=str)
def test_queries_of_annotations(rule: Rule) -> None:
    """Each query in an annotation parses, and uses series and labels that exist."""
    for query in lint.queries(rule):
        Labels(known()).of(promql.parse(query))


def test_queries_are_found() -> None:
    """With and without labels, over several lines."""
    text = (
        '{{ with printf "max(a{x=%q}\nand b)"\n$labels.x | query -}}{{ end }} {{- with query "c" }}{{ end }} {{ $v }}'
    )
    assert list(lint.queries(replace(ALERT, annotations={"description": text}))) == ['max(a{x="x"}\nand b)', "c"]


def _version() -> str:
    (rule,) = (rule for rule in rules() if rule.name == "laggard_rules_info")
    return rule.labels["version"]


def test_version() -> None:
    """The pack has a semantic version, and the changelog knows it."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", _version())
    assert f"Rule pack {_version()}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_deprecated_names_of_the_pack() -> None:
    """Old names copy their replacement until the next major version, and no rule of the pack reads them."""
    old = [rule for rule in rules() if rule.file.endswith("-deprecated.yml")]
    recorded = frozenset(rule.name for rule in rules() if not rule.is_alert and rule not in old)
    version = tuple(map(int, _version().split(".")))
    assert [mistake for rule in old for mistake in lint.deprecated(rule, recorded, version)] == []
    assert not {rule.name for rule in old} & {word for rule in rules() for word in re.findall(r"[\w:]+", rule.expr)}


def test_deprecation() -> None:
    """A good deprecation passes; each way to get it wrong is found."""
    recorded = frozenset({"run:training_new:mean"})
    labels = {"replacement": "run:training_new:mean", "removal": "1.0.0"}
    good = replace(RECORD, name="run:training_old:mean", expr="run:training_new:mean", labels=labels)
    assert list(lint.deprecated(good, recorded, (0, 1, 0))) == []
    wrong = {
        "run:training_new:mean is recorded elsewhere": replace(good, name="run:training_new:mean"),
        "replacement '' is not recorded": replace(good, labels={"removal": "1.0.0"}),
        "is no copy of its replacement": replace(good, expr="2 * run:training_new:mean"),
        "removal '0.2.0' is no coming major version": replace(good, labels={**labels, "removal": "0.2.0"}),
        "an alert has no old name that anybody reads": replace(good, is_alert=True),
    }
    for mistake, rule in wrong.items():
        assert mistake in lint.deprecated(rule, recorded, (0, 1, 0))
    assert list(lint.deprecated(good, recorded, (1, 0, 0))) == ["removal '1.0.0' is no coming major version"]
