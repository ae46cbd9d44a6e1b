"""Every sum, count, average and quantile of the pack is over one value for each rank, device or operation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from dashboards.queries import CHOSEN, PANELS, concrete
from tests.rules import lint, once
from tests.rules.pack import RULES, Rule, alerts, rules


def _optional() -> Iterator[Rule]:
    for path in sorted((RULES / "optional").glob("*.yml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                labels = rule.get("labels", {})
                yield Rule(path.name, group["name"], rule["record"], rule["expr"], is_alert=False, labels=labels)


def test_a_second_path_changes_nothing() -> None:
    """No rule would see a rank twice where its series come twice, and no join finds two where it must find one."""
    for rule in rules():
        found = once.mistakes(rule.expr, once.pack_keys())
        assert (found != []) is (rule.name in once.OF_PATHS), (str(rule), found)


def test_a_second_path_changes_no_optional_rule() -> None:
    """Nor do optional rules."""
    known = once.keys([*rules(), *_optional()])
    assert [mistake for rule in _optional() for mistake in once.mistakes(rule.expr, known)] == []


def test_what_alerts_say() -> None:
    """Queries of annotations are over one value for each rank as well."""
    queries = [query for rule in alerts() for query in lint.queries(rule)]
    assert len(queries) > len(alerts())
    assert [mistake for query in queries for mistake in once.mistakes(query, once.pack_keys())] == []


def test_dashboards() -> None:
    """So are those of dashboards."""
    queries = [concrete(target["expr"], cluster="east") for panel in PANELS for target in panel.targets]
    assert len(queries) > len(PANELS)
    assert [mistake for query in queries for mistake in once.mistakes(query, once.pack_keys())] == []


@pytest.mark.parametrize("query", [concrete(query, cluster="east") for query, _ in CHOSEN.values()])
def test_what_dashboards_choose(query: str) -> None:
    """And those by which a dashboard chooses what it shows."""
    assert once.mistakes(query, once.pack_keys()) == []


def test_what_tells_recorded_series_apart() -> None:
    """Labels of rules with one name, labels that an aggregation keeps, and none of a path."""
    known = once.pack_keys()
    assert known["run:training_window_steps:min"] == {"cluster", "training_run", "training_window"}
    assert known["run_rank:training_finished:last"] == {"cluster", "training_run", "training_rank"}
    assert known["gpu:gpu_nvlink_inactive_peers:min"] == {"cluster", "uuid"}
    assert known["laggard_rules_info"] == frozenset()
    assert not any(once.PATH in key for key in known.values())


R = "training_steps_total"
FINISHED = "run_rank:training_finished:last * on (cluster, training_run, training_rank) group_left"
STARTS = "max by (cluster, training_run, training_rank, host_name) (training_rank_start_timestamp_seconds)"
G = 'training_memory_usage_bytes{training_memory_kind="host_rss"}'
L = 'training_memory_limit_bytes{training_memory_kind="host"}'


@pytest.mark.parametrize(
    "expr",
    [
        f"sum by (cluster, training_run) (max by (cluster, training_run, training_rank) ({R}))",
        f"count by (cluster, training_run) (group by (cluster, training_run, training_rank) ({R}) > 0)",
        f"quantile by (cluster, training_run) (0.5, min by (cluster, training_run, training_rank) (rate({R}[1m]) > 0))",
        f"max by (cluster, training_run) ({R})",
        f"max by (cluster, training_run) (sum without (training_memory_kind) ({G.partition('{')[0]}))",
        f"topk by (cluster, training_run) (1, max by (cluster, training_run, training_rank) ({R}))",
        f"topk(3, max by (cluster, training_run, training_rank) ({R}))",
        # Of one path both sides are there, and match.
        "max by (cluster, training_run) (training_process_world_size unless training_process_condition < 2)",
        f"max by (cluster, training_run) ({G} / ignoring (training_memory_kind) {L})",
        (
            f"sum by (cluster, training_run) (max by (cluster, training_run, training_rank) ({R} and on "
            f"(cluster, training_run) laggard_threshold))"
        ),
        (
            f"max by (cluster, training_run) ({R} * on (cluster, training_run) group_left () "
            f"run:training_ranks_live:count)"
        ),
        "sum by (cluster, training_run) (run_rank:training_finished:last)",
        f"run:training_ranks_live:count and on (cluster, training_run) {R}",
        # One of several hosts of a rank.
        f"{FINISHED} (host_name) topk by (cluster, training_run, training_rank) (1, {STARTS})",
        'count by (name) (label_replace(max by (cluster, uuid) (gpu_up), "name", "$1", "uuid", "(.+)"))',
    ],
)
def test_what_two_paths_do_not_change(expr: str) -> None:
    """One value is kept of several before anything is added, counted or joined."""
    assert once.mistakes(expr, once.pack_keys()) == []


@pytest.mark.parametrize(
    ("expr", "mistake"),
    [
        (f"sum by (cluster, training_run) (rate({R}[1m]))", "sum of a series once for each path"),
        (f"count by (cluster, training_run) ({R} > 0)", "count of a series once for each path"),
        (f"avg by (cluster, training_run, training_rank) ({R})", "avg of a series once for each path"),
        (f"stddev by (cluster, training_run) ({R})", "stddev of a series once for each path"),
        (f'count_values by (cluster, training_run) ("steps", {R})', "count_values of a series once for each path"),
        (
            f"max by (cluster, training_run) (topk by (cluster, training_run) (3, {R}))",
            "topk of a series once for each path",
        ),
        # What is kept must not be one value of several phases.
        (
            (
                "sum by (cluster, training_run) (max by (cluster, training_run, training_rank) "
                "(training_phase_duration_seconds_sum))"
            ),
            "sum of one value of several: training_phase",
        ),
        (
            f"max by (cluster, training_run) ({R} / on (cluster, training_run, training_rank) {R})",
            "finds several on the side of one: the path, training_peer_group may differ",
        ),
        (f"{FINISHED} () {R}", "finds several on the side of one: the path, training_peer_group may differ"),
        (f"{FINISHED} (host_name) topk(9, {STARTS})", "finds several on the side of one: host_name may differ"),
        (f"{FINISHED} (host_name) {STARTS}", "finds several on the side of one: host_name may differ"),
        (
            f"max by (cluster, training_run) ({R} unless run_rank:training_finished:last)",
            "never matches: no path has both",
        ),
        (f"max by (cluster, training_run) ({R} and training_process_up)", "never matches: no path has both"),
        ("max(gpu_up) > scalar(gpu_up)", "is NaN where cluster, the path, uuid differs"),
        (f"sum without (training_rank) ({R})", "gives a series for each path"),
        (f"{R} > 0", "gives a series for each path"),
        (f"topk by (cluster, training_run) (1, {R})", "gives a series for each path"),
    ],
)
def test_what_two_paths_change(expr: str, mistake: str) -> None:
    """Each way to see a rank twice is found."""
    found = once.mistakes(expr, once.pack_keys())
    assert any(mistake in each for each in found), found
