"""What holds for every rule of the pack, without running it."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import promql_parser as promql
import pytest

from laggard.version import PACK_VERSION
from laggard_cli.past.templates import questions, render
from laggard_cli.prometheus import Sample
from laggard_cli.rules.profiles import load_profile
from tests.rules.pack import CLUSTER, FOREIGN, RULES, Labels, Rule, alerts, emitted, groups, known, rules, selectors

#: They differ from one path to Prometheus to the next.
PATH_LABELS = {"job", "instance", "le", "pod", "container", "otel_scope_name", "otel_scope_version"}

#: Prices and the like, which have no default: a user records them, or does without.
GIVEN = {"gpu_hour_price", "carbon_grams_per_kwh", "power_overhead"}

#: What reads its own samples of before: whoever is named stays named for as long as it stands out.
STANDING = {"run_rank:training_straggler_score:named"}

SUFFIXES = (
    "estimate",
    "first",
    "long",
    "mean",
    "quartile",
    "reference",
    "ratio",
    "count",
    "max",
    "min",
    "last",
    "info",
    "value",
    "margin",
    "median",
    "rate",
    "compared",
    "recent",
    "slow",
    "named",
    "persistent",
    "sustained",
    "early",
    "candidate",
    "peers",
    "limit",
    "spread",
    "total",
    "most",
    "excess",
)


def test_uses_only_what_is_emitted_or_recorded() -> None:
    """Every metric of a rule is one that we emit or record, and has each label that the rule uses."""
    for rule in rules():
        labels = Labels(known()).of(promql.parse(rule.expr))
        templated = set(re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values())))
        assert templated <= labels | rule.labels.keys(), rule


def test_labels_are_followed_as_prometheus_would() -> None:
    """The check above is worth something: it knows when a label is lost, kept, added, or never was there."""
    labels = Labels({"a": frozenset({"run", "rank"}), "b": frozenset({"run", "host"})})
    cases = {
        "max by (run) (a)": {"run"},
        "max without (run) (a)": {"rank"},
        "a * on (run) group_left (host) b": {"run", "rank", "host"},
        "b * on (run) group_right (host) a": {"run", "rank", "host"},
        "a / on (run) b": {"run"},
        "a and on (run) b": {"run", "rank"},
        "topk by (run) (1, a)": {"run", "rank"},
        'count_values by (run) ("size", a)': {"run", "size"},
        'label_replace(a, "phase", "x", "", "")': {"run", "rank", "phase"},
    }
    assert {text: labels.of(promql.parse(text)) for text in cases} == cases
    for text in ("c", "max by (host) (a)", 'a{host="x"}', "a / on (host) b", "a * on (run) group_left (rank) b"):
        with pytest.raises(AssertionError):
            labels.of(promql.parse(text))


def test_no_label_of_a_path() -> None:
    """No rule depends on a label that another way to Prometheus would not bring, but to find a foreign series' host."""
    own = [rule for rule in rules() if rule.file != "adapter-node.yml"]
    assert [str(rule) for rule in own if PATH_LABELS & set(re.findall(r"\w+", rule.expr))] == []


def test_groups_are_small_and_told_apart() -> None:
    """A group has at most 20 rules, Mimir's default limit, an interval, and a name of its own of 40 characters."""
    assert all(len(group["rules"]) <= 20 for _, group in groups())
    assert all(group["name"].startswith("laggard-") and len(group["name"]) <= 40 for _, group in groups())
    assert all(group["interval"] in ("5s", "15s", "30s", "45s", "1m", "2m", "5m") for _, group in groups())
    assert max(Counter(group["name"] for _, group in groups()).values()) == 1


def test_groups_of_a_family_are_named_after_its_file() -> None:
    """Who reads the name of a group in an error of Prometheus knows the file, and no two families meet in a name."""
    for file, group in groups():
        stem = file.removesuffix(".yml")
        if "-" in stem:
            assert group["name"].startswith(f"laggard-{stem}"), file


def test_a_rule_reads_what_stands_above_it() -> None:
    """Of its own group a rule uses what is recorded above it: of the rest, order would decide what it sees.

    A verdict that stands reads what it said itself before.
    """
    steps = 0
    for group, each in itertools.groupby(rules(), key=lambda rule: rule.group):
        found = list(each)
        for place, rule in enumerate(found):
            used = {selector.name for selector in selectors(rule.expr)}
            below = {each.name for each in found[place:]} - ({rule.name} & STANDING)
            assert not used & below, f"{rule} in {group}"
            steps += bool(used & {above.name for above in found[:place]})
    assert steps > 10


def test_a_rule_can_be_read() -> None:
    """No expression is long, few are middling, none combines many sets, and all of them together are not many lines."""
    exprs = [rule.expr for rule in rules()]
    lines = [sum(bool(line.strip()) and line.strip()[0] != "#" for line in expr.splitlines()) for expr in exprs]
    assert sum(lines) <= 2900
    assert max(lines) <= 30
    assert sum(each > 20 for each in lines) <= 10
    assert sorted(map(len, exprs))[len(exprs) * 9 // 10] <= 600
    sets = Counter(len(re.findall(r"\b(?:and|or|unless)\b", expr)) for expr in exprs)
    assert max(sets) <= 5


def test_what_stands_beside_an_or_is_in_brackets() -> None:
    """``or`` binds less than ``and`` and ``unless``, which nobody has to know to read a rule."""
    operands: set[tuple[str, str]] = set()

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.BinaryExpr) and str(node.op) == "or":
            operands.update(
                (str(each.op), str(node)) for each in (node.lhs, node.rhs) if isinstance(each, promql.BinaryExpr)
            )

    for rule in rules():
        promql.walk(promql.parse(rule.expr), visit)
    assert {operator for operator, _ in operands} > {"*", ">"}
    assert [where for operator, where in operands if operator in ("and", "unless")] == []


def test_samples_of_ranks() -> None:
    """Of many ranks two samples are asked, and of as many as each promises all of them."""
    chosen = {m.value for rule in rules() for each in selectors(rule.expr) for m in each.matchers.matchers
              if m.name == "training_rank" and "*" in m.value}  # fmt: skip
    ranks = [str(rank) for rank in range(10_000)]
    samples = {len(found): found for found in ([r for r in ranks if re.fullmatch(each, r)] for each in chosen)}
    assert sorted(samples) == [199, 1900]
    assert samples[199] == ranks[:100] + ranks[100::100]
    assert samples[1900] == ranks[:1000] + ranks[1005::10]


def test_names_of_recorded_series() -> None:
    """Recorded series are named level:metric:operation, and the level names labels that they have."""
    level_labels = {
        "run": "training_run",
        "rank": "training_rank",
        "peer_group": "training_peer_group",
        "phase": "training_phase",
        "workload": "training_workload",
        "reason": "training_reason",
        "host": "host_name",
        "gpu": "uuid",
        "driver": "training_driver_version",
        "generation": "training_gc_generation",
    }
    for rule in rules():
        if rule.is_alert or rule.is_adapter or rule.name in ("laggard_rules_info", "laggard_threshold"):
            continue
        level, metric, operation = rule.name.split(":")
        assert metric.startswith(("training_", "laggard_", "gpu_", "host_"))
        assert operation in SUFFIXES
        for name, label in level_labels.items():
            assert (name not in re.split("_(?!group)", level)) or label in known()[rule.name], rule.name


def test_adapters_record_our_names() -> None:
    """An adapter records only what we emit, with our labels, so that no rule need know of it."""
    for rule in rules():
        # Metrics of the host come with the exporter's host collectors; a step between has a name of three parts.
        if rule.is_adapter and not rule.name.startswith("host_") and ":" not in rule.name:
            labels = Labels(known()).of(promql.parse(rule.expr)) | rule.labels.keys()
            assert labels - {"laggard_adapter", CLUSTER} <= emitted()[rule.name], rule.name


def test_no_name_of_another_exporter_is_ours() -> None:
    """AMD's exporter begins its names with gpu_ too: none of those that an adapter reads would pass for one of ours."""
    assert not FOREIGN.keys() & emitted().keys()


def test_the_version_of_the_pack_is_what_the_commands_say() -> None:
    """``laggard_rules_info`` carries the version that ``--version`` prints."""
    (info,) = (rule for rule in rules() if rule.name == "laggard_rules_info")
    assert info.labels == {"version": PACK_VERSION}


def test_every_threshold_is_used_and_every_used_one_is_there() -> None:
    """A threshold that no rule compares with would be a promise that nothing keeps."""
    text = " ".join(rule.expr for rule in rules())
    used = set(re.findall(r'laggard_threshold\{name="(\w+)"\}', text)) - GIVEN
    assert used == {rule.labels["name"] for rule in rules() if rule.name == "laggard_threshold"}
    of_a_run = {rule.labels["name"] for rule in rules() if rule.name == "run:laggard_threshold:value"}
    assert set(re.findall(r'run:laggard_threshold:value\{name="(\w+)"\}', text)) == of_a_run


@pytest.mark.parametrize("rule", alerts(), ids=str)
def test_an_alert_is_complete(rule: Rule) -> None:
    """An alert says how severe it is, what it is, with which numbers, what to do, and where to read on."""
    links = load_profile(RULES, "production").links
    assert re.fullmatch(r"Training[A-Z]\w+|LaggardWatchdog", rule.name)
    assert len(rule.name) <= 40
    assert rule.labels["severity"] in ("critical", "warning", "info")
    assert set(rule.annotations) - {"cost"} == {"title", "summary", "description", "recommendation", *links}
    title, summary = rule.annotations["title"], rule.annotations["summary"]
    assert title[0].isupper()
    assert "{{" not in title
    assert title.endswith(".")
    assert summary.endswith(".")
    # A pager shows nothing else: which run, rank, host, device.
    shown = set(re.findall(r"\$labels\.(\w+)", summary))
    labels = Labels(known()).of(promql.parse(rule.expr)) & {
        "training_run",
        "training_rank",
        "uuid",
        "training_peer_group",
    }
    assert shown >= labels
    assert "{{ $labels." in rule.annotations["description"]
    assert rule.annotations["runbook_url"] == f"{links['runbook_url']}{rule.name}.md"
    assert rule.annotations["dashboard_url"].startswith(links["dashboard_url"])
    assert not any("$value" in value or "{{" in value for value in rule.labels.values())


@pytest.mark.parametrize("rule", [rule for rule in alerts() if "cost" in rule.annotations], ids=str)
def test_a_cost_is_a_share_or_all(rule: Rule) -> None:
    """A report reads it: the alert's value, the answer to one query, or all of the time where the run stands still."""
    said = rule.annotations["cost"]
    asked = questions(said, dict.fromkeys(known(), "1"))
    assert len(asked) + ("$value" in said) == (rule.labels["training_kind"] != "hang")
    assert render(said, {}, 0.25, lambda _: [Sample({}, 0.25)]) in (
        "25% of each step",
        "25% of the time",
        "all of the time",
    )


@pytest.mark.parametrize("rule", alerts(), ids=str)
def test_annotations_have_no_durations_of_a_profile(rule: Rule) -> None:
    """A query in an annotation has no window, since annotations are not rendered."""
    for text in rule.annotations.values():
        assert not re.search(r"\[\d+\w\]", text)


def test_the_readme_lists_every_alert() -> None:
    """The table has each alert once, with its severity, and no other."""
    listed: dict[str, str] = {}
    for line in (RULES / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`((?:Training|Laggard)[A-Z]\w+)`", cells[0])
        severities = cells[1].split(", ") * len(names) if len(cells) > 1 else []
        for name, severity in zip(names, severities, strict=False):
            assert name not in listed, name
            listed[name] = severity
    assert listed == {rule.name: rule.labels["severity"] for rule in alerts()}
