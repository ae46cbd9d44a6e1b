"""The rules of alerts: those of the server that evaluates them, else those that this laggard ships."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from laggard_cli.clusters import is_of_a_replica
from laggard_cli.errors import CommandError
from laggard_cli.pack import pack_rules
from laggard_cli.prometheus import Prometheus, Rule, Sample


class AlertRules:
    """Finds the rule of an alert. ``served`` are the names of the alerts that the server knows."""

    def __init__(self, prometheus: Prometheus) -> None:
        try:
            # A querier adds the labels of the server that evaluates a rule.
            self._rules: list[Rule] = [
                {**rule, "labels": {name: text for name, text in rule["labels"].items() if not is_of_a_replica(name)}}
                for rule in prometheus.rules()
            ]
        except CommandError:
            # Servers that answer queries and evaluate no rules, such as a querier, may not know the path.
            self._rules = list[Rule]()
        self.served = {rule["name"] for rule in self._rules}

    @cached_property
    def _shipped(self) -> list[Rule]:
        return [
            {
                "name": rule["alert"],
                "query": rule["expr"],
                "labels": rule.get("labels", {}),
                "annotations": rule.get("annotations", {}),
            }
            for rule in pack_rules()
            if "alert" in rule
        ]

    def of(self, labels: Mapping[str, str]) -> Rule | None:
        """Return the rule of an alert with these labels, in the form of Prometheus' API; None if nobody knows it."""
        alert = labels.get("alertname", "")
        known = self._rules if alert in self.served else self._shipped
        return next(
            (rule for rule in known if rule["name"] == alert and rule["labels"].items() <= labels.items()), None
        )


def matches_of(
    rule: Rule, samples: Iterable[Sample], alerts: Iterable[dict[str, str]]
) -> list[tuple[float, dict[str, str]]]:
    """Return the answers to a rule's query that are those of some alerts, given by their labels: values and labels."""
    alerts = list(alerts)
    found: list[tuple[float, dict[str, str]]] = []
    for sample in samples:
        named = {name: text for name, text in sample.labels.items() if name != "__name__"}
        found += [(sample.value, labels) for labels in alerts if (named | rule["labels"]).items() <= labels.items()]
    return found
