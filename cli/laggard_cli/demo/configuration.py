"""What the demo's servers are told: the rules at its own pace, what to scrape, and whom to wake."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from promql_parser import parse_duration

from laggard_cli.demo.acts import LEAK_RATE
from laggard_cli.rules import render, rules_folder
from laggard_cli.rules.profiles import Profile, load_profile

#: Medium and long windows and persistence, by their names in production: an act ends sooner than in the fast profile.
_DURATIONS = {"3m": "12s", "6m": "24s", "10m": "16s"}
#: Groups that production evaluates less often are evaluated every two seconds, so that a window holds enough samples.
_INTERVALS = {"1m": "30s", "2m": "30s"}

#: Families of rules whose verdicts take too long for an act all the same, and their durations: trends are recorded and
#: compared every few seconds, and the last hour is twelve seconds.
_TRENDS = ("memory", "pipeline", "goodput")
_TREND_DURATIONS = {"5m": "5s", "15m": "8s", "20m": "8s", "30m": "16s", "45m": "24s", "1h": "12s"}

#: Thresholds that are others for the demo's run, and why.
_THRESHOLDS = {
    # Its ranks and their loaders share the few processors of one machine, so a different rank is slow in each step.
    # That is true, and not what the demo is about.
    # On a host so short of processors, half of the share of contention is enough.
    **dict.fromkeys(("imbalance_share", "network_share"), 0.6),
    "contention_share": 1.2,
    # What an act does to steps, and above all the step in which a rank was frozen, is a tail in the acts that follow.
    **dict.fromkeys(("jitter_share", "long_tail_share"), 1000),
    # An act is long enough to be a regression against the acts before it.
    "regression_ratio": 100,
    # How long a leak leaves depends on the machine; the demo's leaves at most a third of this.
    "memory_leak_horizon_seconds": 3 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / LEAK_RATE,
}


def write(
    folder: Path,
    run: str,
    addresses: Mapping[str, str],
    targets: Mapping[str, Sequence[int]],
    pager: int,
    *,
    rules: Mapping[str, str] | None = None,
    interval: str = "1s",
) -> None:
    """Write rules and configuration files into a folder.

    Args:
        folder: gets ``rules``, ``prometheus.yml`` and ``alertmanager.yml``.
        run: the run whose thresholds are the demo's.
        addresses: of the servers by their names; Alertmanager's is needed.
        targets: job to the ports on loopback that Prometheus scrapes.
        pager: port of the pager on loopback.
        rules: name and text of each rule file, when not the demo's.
        interval: of scrapes, as Prometheus writes it.
    """
    place = folder / "rules"
    place.mkdir()
    for name, text in (rule_files() if rules is None else rules).items():
        (place / name).write_text(text)
    (place / "demo.yml").write_text(yaml.safe_dump(_overrides(run)))
    prometheus = _prometheus(place, addresses["alertmanager"], targets, interval)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(prometheus))
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(_alertmanager(pager)))


def rule_files() -> dict[str, str]:
    """Return name and text of each rule file: the fast profile, with windows that an act has time for."""
    most, trends = profiles()
    return {**render(most), **{name: text for name, text in render(trends).items() if _family(name) in _TRENDS}}


def profiles() -> tuple[Profile, Profile]:
    """Return the profile of most rules, and that of the trends."""
    fast = load_profile(rules_folder(), "fast")
    shorter = _parsed(_TREND_DURATIONS)
    window = shorter[parse_duration("15m")]
    thresholds = {
        **fast.thresholds,
        "memory_leak_window_seconds": window.total_seconds(),
        # Beside the first seconds of a leak, what all processes grow by at the beginning of training is a good part.
        "memory_leak_part": 0.5,
        # An act ends before the 150 steps after which unsteady steps are told from steps that became longer for good.
        "spread_steps": 16,
    }
    most = replace(
        fast,
        name="demo",
        durations={**fast.durations, **_parsed(_DURATIONS)},
        intervals={**fast.intervals, **_parsed(_INTERVALS)},
        thresholds=thresholds,
    )
    return most, replace(most, durations={**most.durations, **shorter})


def _parsed(durations: Mapping[str, str]) -> dict[timedelta, timedelta]:
    return {parse_duration(production): parse_duration(demo) for production, demo in durations.items()}


def _family(name: str) -> str:
    return Path(name).stem.partition("-")[2]


def _prometheus(rules: Path, alertmanager: str, targets: Mapping[str, Sequence[int]], interval: str) -> dict[str, Any]:
    scrape = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
        for job, ports in targets.items()
    ]
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [f"{rules}/*.yml"],
        "scrape_configs": scrape,
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [alertmanager.removeprefix("http://")]}]}],
        },
    }


def _alertmanager(pager: int) -> dict[str, Any]:
    return {
        "route": {
            "receiver": "pager",
            "group_by": ["cluster", "training_run", "alertname"],
            "group_wait": "1s",
            "group_interval": "2s",
            "routes": [{"receiver": "nobody", "matchers": ["alertname=LaggardWatchdog"]}],
        },
        "receivers": [
            {"name": "nobody"},
            {"name": "pager", "webhook_configs": [{"url": f"http://127.0.0.1:{pager}"}]},
        ],
    }


def _overrides(run: str) -> dict[str, Any]:
    rules = [
        {
            "record": "laggard_threshold_override",
            "labels": {"name": name, "training_run": run},
            "expr": f"vector({value})",
        }
        for name, value in _THRESHOLDS.items()
    ]
    return {"groups": [{"name": "demo", "rules": rules}]}
