"""The limits of a tenant of Mimir suffice for the rule pack, and for as many ranks as the file says."""

from __future__ import annotations

import re
from typing import Any

import yaml

from laggard import conventions
from laggard_cli.rules import render
from tests.collector.support import ROOT

FILE = ROOT / "deploy" / "mimir" / "overrides.yaml"
#: Of a rank with every signal in use; tests/instrumentation/test_series.py counts them.
SERIES_PER_RANK = 200
INTERVAL = 15
#: What Prometheus and the paths add to the labels of a series: its name, job, instance.
ADDED = 3


def test_limits_suffice() -> None:
    """Groups, rules and labels of the pack, series and samples of the ranks: none is above its limit."""
    text = FILE.read_text(encoding="utf-8")
    limits: dict[str, Any] = yaml.safe_load(text)["overrides"]["laggard"]
    groups = [group for each in render(form="mimir").values() for group in yaml.safe_load(each)["groups"]]
    assert len(groups) <= limits["ruler_max_rule_groups_per_tenant"]
    assert max(len(group["rules"]) for group in groups) <= limits["ruler_max_rules_per_rule_group"]

    labels = max(
        (len({*conventions.IDENTITY, *metric.attributes}) + ADDED, metric.name)
        for metric in (*conventions.TRAINING_METRICS, *conventions.PROCESS_METRICS)
    )
    assert labels[0] <= limits["max_label_names_per_series"]
    assert labels[1] == "training.run.info"

    ranks = int(re.findall(r"^# For ([\d,]+) ranks", text, re.MULTILINE)[0].replace(",", ""))
    # Twice the ranks' own: as many again by restarts, node exporters and rules.
    assert ranks * SERIES_PER_RANK * 2 <= limits["max_global_series_per_user"]
    assert ranks * SERIES_PER_RANK * 2 / INTERVAL <= limits["ingestion_rate"] <= limits["ingestion_burst_size"]
    # As in Prometheus and in Thanos.
    assert limits["out_of_order_time_window"] == "10m"
