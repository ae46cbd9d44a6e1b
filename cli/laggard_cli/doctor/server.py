"""What a server says of itself: its targets, its rules, and whom it tells of alerts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from promql_parser import parse_duration

from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus


@dataclass(frozen=True)
class Target:
    """Something that is scraped."""

    pool: str
    instance: str
    url: str
    #: ``up``, ``down``, or ``unknown`` before the first scrape.
    health: str
    error: str
    #: ``None`` where the server does not say.
    interval: timedelta | None


@dataclass(frozen=True)
class Rule:
    """A rule of a group."""

    name: str
    labels: dict[str, str]
    health: str
    error: str


@dataclass(frozen=True)
class Group:
    """A group of rules."""

    name: str
    file: str
    interval: timedelta
    #: Whether it has been evaluated, and in how many seconds.
    evaluated: bool
    seconds: float
    rules: tuple[Rule, ...]


def targets(server: Prometheus) -> list[Target]:
    """Return all active targets. Raises :class:`laggard_cli.errors.CommandError` where a server has none."""
    return server.data(
        "api/v1/targets", {"state": "active"}, lambda data: list(map(_target, _list(data, "activeTargets")))
    )


def groups(server: Prometheus) -> list[Group]:
    """Return all groups of rules."""
    return server.data("api/v1/rules", {}, lambda data: list(map(_group, _list(data, "groups"))))


def flags(server: Prometheus) -> dict[str, str]:
    """Return with which flags the server was started; none where it does not say."""
    try:
        return server.data(
            "api/v1/status/flags", {}, lambda data: {str(name): str(value) for name, value in data.items()}
        )
    except CommandError:
        return {}


def alertmanagers(server: Prometheus) -> list[str]:
    """Return the addresses of the Alertmanagers that the server tells."""
    return server.data(
        "api/v1/alertmanagers", {}, lambda data: [str(each["url"]) for each in _list(data, "activeAlertmanagers")]
    )


def _list(data: Any, name: str) -> list[Any]:
    return cast("list[Any]", data[name] or [])


def _target(found: Any) -> Target:
    labels: dict[str, Any] = found.get("labels") or {}
    interval = str(found.get("scrapeInterval") or "")
    return Target(
        pool=str(found.get("scrapePool") or labels.get("job", "")),
        instance=str(labels.get("instance", found["scrapeUrl"])),
        url=str(found["scrapeUrl"]),
        health=str(found["health"]),
        error=str(found.get("lastError") or ""),
        interval=parse_duration(interval) if interval else None,
    )


def _group(found: Any) -> Group:
    # The year 1 stands for never. VictoriaMetrics has 1970.
    evaluated = str(found.get("lastEvaluation") or "")
    return Group(
        name=str(found["name"]),
        file=str(found.get("file") or ""),
        interval=timedelta(seconds=float(found.get("interval") or 0)),
        evaluated=bool(evaluated) and not evaluated.startswith(("0001", "1970")),
        seconds=float(found.get("evaluationTime") or 0),
        rules=tuple(map(_rule, _list(found, "rules"))),
    )


def _rule(found: Any) -> Rule:
    labels: dict[str, Any] = found.get("labels") or {}
    return Rule(
        name=str(found["name"]),
        labels={str(name): str(text) for name, text in labels.items()},
        health=str(found.get("health") or ""),
        error=str(found.get("lastError") or ""),
    )
