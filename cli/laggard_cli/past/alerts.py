"""The alerts that fired at a time in the past, with what they said."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from laggard_cli.past.rules import AlertRules, matches_of
from laggard_cli.past.templates import Query, TemplateError, render
from laggard_cli.prometheus import Prometheus, Sample

_SERIES = ("__name__", "alertstate")
_ALERTS = 'alertname=~"Training.+"'


def alerts_at(prometheus: Prometheus, at: float) -> list[dict[str, Any]]:
    """Return the alerts as the API gives those of now; ``value`` is None where the rule can not be repeated."""
    samples = prometheus.query(f'ALERTS{{alertstate="firing",{_ALERTS}}}', at)
    firing = [{name: text for name, text in each.labels.items() if name not in _SERIES} for each in samples]
    if not firing:
        return []
    since = {
        _key(sample.labels): datetime.fromtimestamp(sample.value, timezone.utc).isoformat()
        for sample in prometheus.query(f"ALERTS_FOR_STATE{{{_ALERTS}}}", at)
    }
    rules = AlertRules(prometheus)
    answers: dict[str, list[Sample]] = {}

    def ask(expression: str) -> list[Sample]:
        if expression not in answers:
            answers[expression] = prometheus.query(expression, at)
        return answers[expression]

    return [
        {
            "labels": labels,
            "state": "firing",
            "activeAt": since.get(_key(labels), ""),
            **_said(rules.of(labels), labels, ask),
        }
        for labels in firing
    ]


def _said(rule: dict[str, Any] | None, labels: dict[str, str], ask: Query) -> dict[str, Any]:
    """Return the value and the texts of an alert."""
    annotations: dict[str, str] = dict.fromkeys(("summary", "description", "recommendation", "runbook_url"), "")
    if rule is None:
        return {"value": None, "annotations": {**annotations, "description": "Nobody knows its rule any more."}}
    annotations |= rule["annotations"]
    matches = matches_of(rule, ask(rule["query"]), [labels])
    if not matches:
        gone = "What it said can not be repeated: its rule has no answer for that time."
        return {"value": None, "annotations": {**annotations, "description": gone, "recommendation": ""}}
    value = matches[0][0]
    texts = {name: _text(template, labels, value, ask) for name, template in annotations.items()}
    return {"value": value, "annotations": texts}


def _text(template: str, labels: dict[str, str], value: float, ask: Query) -> str:
    try:
        return render(template, labels, value, ask)
    except TemplateError:
        # A rule of somebody else may use what is not known here: better as it stands than not at all.
        return template


def _key(labels: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, text) for name, text in labels.items() if name not in _SERIES)
