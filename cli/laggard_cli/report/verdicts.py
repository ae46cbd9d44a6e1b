"""What the rules said of a run over time: from the series ALERTS, with the texts of the rules themselves."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from laggard_cli.clusters import CLUSTER, Run, is_of_a_replica
from laggard_cli.errors import CommandError
from laggard_cli.pack import SEVERITIES, gravity, pack_folder
from laggard_cli.past.rules import AlertRules, matches_of
from laggard_cli.past.templates import TemplateError, render
from laggard_cli.prometheus import Prometheus, Rule, Sample, quoted
from laggard_cli.report.history import GROUP, HOST, PHASE, RANK, Counted, ordered
from laggard_cli.report.span import Span

#: Labels that tell members of one problem apart; all others say which problem it is.
_MEMBERS = (RANK, HOST, "uuid", "hw_id", GROUP, "gpu")
_SKIPPED = ("__name__", "alertstate", "job", "instance")
#: Hosts whose own alerts are asked for by name; of more, only those that name the run are told.
_MOST_HOSTS = 200


@dataclass(frozen=True)
class Firing:
    """One alert from when to when it fired, in seconds since 1970."""

    labels: dict[str, str]
    begin: float
    end: float


@dataclass
class Problem:
    """One thing that is wrong: all firings of an alert that differ only in whom they concern."""

    alert: str
    severity: str
    labels: dict[str, str]
    """Labels that all firings share."""
    firings: list[Firing]
    lasts: bool
    """Whether it still fires at the end of the report."""
    title: str = ""
    """What is wrong in general."""
    summary: str = ""
    """What is wrong with the worst of them."""
    cost: str = ""
    """Template of what it costs."""
    query: str = ""
    """Expression of its rule."""
    description: str = ""
    recommendation: str = ""
    runbook: str = ""
    """The runbook's text, where it is the pack's."""
    runbook_url: str = ""
    value: float | None = None
    at: float | None = None
    """When the description's numbers were so, in seconds since 1970."""
    worst: dict[str, str] = field(default_factory=dict[str, str])
    """Labels of the firing that the description is about."""

    @property
    def begin(self) -> float:
        """When the first of them began, in seconds since 1970."""
        return min(firing.begin for firing in self.firings)

    @property
    def end(self) -> float:
        """When the last of them ended."""
        return max(firing.end for firing in self.firings)

    @property
    def seconds(self) -> float:
        """How long at least one of them fired."""
        total, until = 0.0, 0.0
        for firing in sorted(self.firings, key=lambda each: each.begin):
            total += max(0.0, firing.end - max(firing.begin, until))
            until = max(until, firing.end)
        return total

    def members(self, label: str) -> list[str]:
        """Return the values of a label, such as the ranks that are concerned."""
        return ordered(firing.labels[label] for firing in self.firings if firing.labels.get(label))

    @property
    def phase(self) -> str:
        """The phase, where the verdict names one."""
        return self.labels.get(PHASE, "")


def read(
    server: Counted, prometheus: Prometheus, run: Run, span: Span, hosts: list[str]
) -> tuple[list[Problem], list[str]]:
    """Return the problems of a run, the gravest first, and what could not be found out about them."""
    server.say("verdicts")
    selectors = [run.matcher('alertstate="firing"', 'alertname=~"Training.+"')]
    if 0 < len(hosts) <= _MOST_HOSTS:
        names = quoted("|".join(map(re.escape, hosts)))
        selectors.append(
            f'{{{CLUSTER}={quoted(run.cluster)},training_run="",alertstate="firing",alertname=~"Training.+",{HOST}=~{names}}}'
        )
    told: dict[frozenset[tuple[str, str]], list[tuple[float, dict[str, str]]]] = {}
    for selector in selectors:
        for series in server.over(f"ALERTS{selector}", span):
            labels = {
                name: text for name, text in series.labels.items() if name not in _SKIPPED and not is_of_a_replica(name)
            }
            # A slow rank is one problem, whatever its phase was called while it lasted.
            alert = frozenset((name, text) for name, text in labels.items() if RANK not in labels or name != PHASE)
            told.setdefault(alert, []).extend((moment, labels) for moment in series.values)
    firings: dict[tuple[tuple[str, str], ...], list[Firing]] = {}
    for found in told.values():
        for firing in _firings(found, span):
            shared = tuple(sorted((name, text) for name, text in firing.labels.items() if name not in _MEMBERS))
            firings.setdefault(shared, []).append(firing)
    problems = [_problem(dict(shared), found, span) for shared, found in firings.items()]
    remarks = _describe(server, prometheus, problems) if problems else []
    problems.sort(key=lambda each: (SEVERITIES.index(each.severity), each.begin, each.alert))
    return problems, remarks


def _firings(told: list[tuple[float, dict[str, str]]], span: Span) -> list[Firing]:
    """Return the stretches in which an alert fired, each with the phase that it gave most often.

    One missing value does not end a stretch.
    """
    stretches: list[list[tuple[float, dict[str, str]]]] = []
    for each in sorted(told, key=lambda pair: pair[0]):
        if stretches and each[0] - stretches[-1][-1][0] <= 2.5 * span.step:
            stretches[-1].append(each)
        else:
            stretches.append([each])
    made: list[Firing] = []
    for stretch in stretches:
        ((phase, _),) = Counter(labels.get(PHASE) for _, labels in stretch).most_common(1)
        labels = next(labels for _, labels in stretch if labels.get(PHASE) == phase)
        made.append(Firing(labels, stretch[0][0], stretch[-1][0]))
    return made


def _problem(shared: dict[str, str], firings: list[Firing], span: Span) -> Problem:
    alert = shared.get("alertname", "")
    return Problem(
        alert=alert,
        severity=gravity(alert, shared.get("severity", "")),
        labels=shared,
        firings=sorted(firings, key=lambda each: (each.begin, each.labels.get(RANK, ""))),
        lasts=max(firing.end for firing in firings) >= span.end - 1.5 * span.step,
    )


def _describe(server: Counted, prometheus: Prometheus, problems: list[Problem]) -> list[str]:
    """Give the problems their texts, as the rules had them; return what that did not work for."""
    server.say("the rules' texts")
    rules = AlertRules(prometheus)
    server.queries += 1
    remarks: list[str] = []
    for problem in problems:
        rule = rules.of(problem.labels)
        if rule is None:
            remarks.append(
                f"{problem.alert}: neither the server nor this laggard knows its rule, so its text is missing"
            )
            continue
        # Rules of a pack before titles have theirs in the summary.
        problem.title = (rule["annotations"].get("title") or rule["annotations"].get("summary", "")).strip()
        problem.cost, problem.query = rule["annotations"].get("cost", ""), rule["query"]
        problem.runbook_url = rule["annotations"].get("runbook_url", "")
        problem.runbook = _runbook(problem.alert)
        try:
            _evaluate(server, problem, rule)
        except (CommandError, TemplateError) as error:
            remarks.append(f"{problem.alert}: its arithmetic could not be repeated ({error})")
    if not rules.served & {problem.alert for problem in problems}:
        remarks.append(
            "The server does not tell its rules: texts and arithmetic are those of the rules that this laggard ships."
        )
    return remarks


def _evaluate(server: Counted, problem: Problem, rule: Rule) -> None:
    """Repeat the arithmetic of the worst firing at a time in its longest stretch.

    An alert outlasts what it is about, so of one that is over the last numbers are those of the recovery.
    """
    longest = max(problem.firings, key=lambda each: each.end - each.begin)
    middle = (longest.begin + longest.end) / 2
    moments = (longest.end, middle, longest.begin) if problem.lasts else (middle, longest.begin, longest.end)
    for moment in dict.fromkeys(moments):
        firing = [each.labels for each in problem.firings if each.begin <= moment <= each.end]
        matches = matches_of(rule, server.at(rule["query"], moment), firing)
        if matches:
            break
    else:
        problem.worst = longest.labels
        raise TemplateError("its condition cannot be evaluated at that time any more")
    problem.at = moment
    problem.value, problem.worst = max(matches, key=lambda each: each[0])

    def answers(expression: str) -> list[Sample]:
        return server.at(expression, moment)

    for name in ("summary", "description", "recommendation"):
        template = rule["annotations"].get(name, "")
        setattr(problem, name, render(template, problem.worst, problem.value, answers))


def _runbook(alert: str) -> str:
    path = pack_folder("rules") / "runbooks" / f"{alert}.md"
    # The name comes from a label: one with a slash in it must lead nowhere.
    return path.read_text(encoding="utf-8") if alert.isidentifier() and path.is_file() else ""
