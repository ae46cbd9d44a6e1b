"""Which verdicts follow from others: as Alertmanager holds symptoms back while their cause fires."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import yaml

from laggard_cli.pack import SEVERITIES, kind, pack_folder
from laggard_cli.report.verdicts import Problem

#: Labels that each rule compares: two verdicts of one report are of one run.
_GIVEN = {"cluster", "training_run"}


@dataclass(frozen=True)
class Follows:
    """Alerts that follow from others, both by name or by kind, and the label beside the run in which they agree."""

    cause: re.Pattern[str]
    cause_is_kind: bool
    symptom: re.Pattern[str]
    symptom_is_kind: bool
    label: str

    def explains(self, alert: str) -> bool:
        """Return whether an alert is such a cause."""
        return bool(self.cause.fullmatch(kind(alert) if self.cause_is_kind else alert))

    def is_explained(self, alert: str) -> bool:
        """Return whether an alert is such a symptom."""
        return bool(self.symptom.fullmatch(kind(alert) if self.symptom_is_kind else alert))


@cache
def follows() -> tuple[Follows, ...]:
    """Return the inhibitions of the shipped configuration of Alertmanager."""
    file = pack_folder("deploy/alertmanager") / "alertmanager.yml"
    rules = yaml.safe_load(file.read_text(encoding="utf-8"))["inhibit_rules"]
    return tuple(
        Follows(*_side(rule["source_matchers"]), *_side(rule["target_matchers"]), "".join(set(rule["equal"]) - _GIVEN))
        for rule in rules
    )


def _side(matchers: list[str]) -> tuple[re.Pattern[str], bool]:
    name, text = re.split("=~?", matchers[0], maxsplit=1)
    return re.compile(text.strip('"')), name == "training_kind"


def cause(problem: Problem, problems: Iterable[Problem]) -> Problem | None:
    """Return the problem from which another one follows, if both were there at the same time."""
    for other in problems:
        above = SEVERITIES.index(other.severity) <= SEVERITIES.index(problem.severity)
        together = other.begin <= problem.end and problem.begin <= other.end
        if other is problem or not above or not together:
            continue
        for each in follows():
            if each.explains(other.alert) and each.is_explained(problem.alert):
                alike = not each.label or set(problem.members(each.label)) <= set(other.members(each.label))
                if alike and (not each.label or problem.members(each.label)):
                    return other
    return None
