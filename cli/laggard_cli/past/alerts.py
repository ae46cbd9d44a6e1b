"""The alerts that fired at a time in the past, with what they said."""

from __future__ import annotations

from laggard_cli.errors import CommandError
from laggard_cli.past.rules import AlertRules, matches_of
from laggard_cli.past.templates import Query, TemplateError, render
from laggard_cli.past.times import form
from laggard_cli.prometheus import Alert, Prometheus, Rule, Sample

_SERIES = ("__name__", "alertstate")
_ALERTS = 'alertname=~"Training.+"'


def alerts_at(prometheus: Prometheus, at: float) -> list[Alert]:
    """Return the alerts as the API gives those of now; ``value`` is None where the rule cannot be repeated."""
    samples = prometheus.query(f'ALERTS{{alertstate="firing",{_ALERTS}}}', at)
    firing = [{name: text for name, text in each.labels.items() if name not in _SERIES} for each in samples]
    if not firing:
        return []
    since = {
        _key(sample.labels): form(sample.value, "%Y-%m-%dT%H:%M:%S.%f+00:00")
        for sample in prometheus.query(f"ALERTS_FOR_STATE{{{_ALERTS}}}", at)
    }
    rules = AlertRules(prometheus)
    answers: dict[str, list[Sample]] = {}

    def query(expression: str) -> list[Sample]:
        if expression not in answers:
            answers[expression] = prometheus.query(expression, at)
        return answers[expression]

    return [_said(rules.of(labels), labels, since.get(_key(labels), ""), query) for labels in firing]


def _said(rule: Rule | None, labels: dict[str, str], since: str, query: Query) -> Alert:
    """Return an alert with its value and texts."""
    annotations: dict[str, str] = dict.fromkeys(("summary", "description", "recommendation", "runbook_url"), "")
    value: float | None = None
    if rule is None:
        annotations["description"] = "Nobody knows its rule any more."
    else:
        annotations |= rule["annotations"]
        try:
            matches, why = matches_of(rule, query(rule["query"]), [labels]), "its rule has no answer for that time."
        except CommandError as error:
            # As of a pair of servers that records twice, and is not asked as one.
            matches, why = [], str(error)
        if matches:
            value = matches[0][0]
            annotations = {
                name: _text(template, labels, matches[0][0], query) for name, template in annotations.items()
            }
        else:
            annotations["description"] = f"What it said cannot be repeated: {why}"
            annotations["recommendation"] = ""
    return {"labels": labels, "annotations": annotations, "state": "firing", "activeAt": since, "value": value}


def _text(template: str, labels: dict[str, str], value: float, query: Query) -> str:
    try:
        return render(template, labels, value, query)
    except (CommandError, TemplateError):
        # A rule of somebody else may use what is not known here: better as it stands than not at all.
        return template


def _key(labels: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, text) for name, text in labels.items() if name not in _SERIES)
