"""The report as one page: everything is in it, and it may load nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.version import __version__
from laggard_cli.past.times import iso
from laggard_cli.report import heat, plots, tables
from laggard_cli.report.arrays import known
from laggard_cli.report.costs import Cost, Losses, words
from laggard_cli.report.evidence import Beside
from laggard_cli.report.history import History
from laggard_cli.report.judgement import Judged
from laggard_cli.report.markup import details, element, facts, figure, table, text
from laggard_cli.report.pictures import Axis, timeline
from laggard_cli.report.runbooks import to_html
from laggard_cli.report.sentences import clock, sentence, short, wrong
from laggard_cli.report.verdicts import Problem
from laggard_cli.units import duration

_HATCH = (
    '<svg class="hidden" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse">'
    '<path d="M0 8L8 0" class="hatched"/></pattern></defs></svg>'
)
#: Restarts that are told one by one.
_MOST_RESTARTS = 6


@dataclass(frozen=True)
class Told:
    """A problem with what it cost and what is known beside it."""

    problem: Problem
    cost: Cost | None
    beside: Beside | None
    cause: Problem | None = None
    """The problem from which this one follows."""

    @property
    def says(self) -> str:
        """What is wrong, since when and at what cost."""
        return sentence(self.problem, self.cost)


@dataclass(frozen=True)
class Report:
    """All that a page shows."""

    history: History
    told: tuple[Told, ...]
    judged: Judged
    losses: Losses | None
    missing: tuple[str, ...]
    server: str
    made: float


def page(report: Report) -> str:
    """Return the page."""
    history, problems = report.history, [each.problem for each in report.told]
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    sections = [
        ("verdicts", "Verdicts", _verdicts(report)),
        ("time", "Over time", _pictures(report, Axis(history, problems), problems)),
        ("cost", "What it costs", tables.cost(report.losses)),
        ("hosts", "Hosts", tables.hosts(history, problems)),
        ("configuration", "What the run ran on", tables.configuration(history)),
        ("unknown", "What is not known", tables.unknown(history, report.missing)),
    ]
    body = [
        _HATCH,
        _header(report, [(name, title) for name, title, _ in sections]),
        element("main", *(_section(*each) for each in sections)),
        _footer(report),
    ]
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        element("title", text(f"laggard report: {history.run}")),
        f"<style>{style}</style>",
    ]
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head><body>{"".join(body)}</body></html>\n'


def _section(name: str, title: str, content: str) -> str:
    return element("section", element("h2", text(title)), content, id=name)


def _header(report: Report, sections: Sequence[tuple[str, str]]) -> str:
    links = (element("li", element("a", text(title), href=f"#{name}")) for name, title in sections)
    reasons = element("ul", *(element("li", text(each)) for each in report.judged.reasons), class_="reasons")
    return element(
        "header",
        element("h1", text(f"Run {report.history.run}")),
        element("p", text("; ".join(_about(report.history))), class_="quiet"),
        element("p", text(report.judged.headline), class_=f"status {report.judged.state}"),
        reasons if report.judged.reasons else "",
        element("nav", element("ul", *links), aria_label="Parts of this report"),
    )


def _about(history: History) -> list[str]:
    span, hosts = history.span, len(set(history.hosts.values()))
    on = f" on {hosts} host{'s' if hosts > 1 else ''}" if hosts else ""
    said = [
        f"{iso(span.begin)} to {iso(span.end)}, {words(span.end - span.begin)}",
        f"{max(history.expected, len(history.ranks))} ranks{on}",
    ]
    lengths = known(history.fact("run:training_step_seconds:mean"))
    if len(lengths):
        part = max(1, len(lengths) // 10)
        first, last = duration(float(lengths[:part].mean())), duration(float(lengths[-part:].mean()))
        said.append(f"a step took {first}" if first == last else f"a step took {first} at first and {last} at last")
    if history.restarts:
        shown = ", ".join(clock(each) for each in history.restarts[:_MOST_RESTARTS])
        more = " and later" if len(history.restarts) > _MOST_RESTARTS else ""
        said.append(f"ranks started once more at {shown}{more}")
    return said


def _verdicts(report: Report) -> str:
    numbered = list(enumerate(report.told, 1))
    grave = [_problem(number, each) for number, each in numbered if each.problem.severity != "info"]
    notes = [_problem(number, each) for number, each in numbered if each.problem.severity == "info"]
    if not grave:
        grave.append(element("p", text("No verdict above info in this time.")))
    if notes:
        notes.insert(0, element("h3", text("Only for information")))
    return "".join(grave + notes)


def _problem(number: int, told: Told) -> str:
    problem = told.problem
    pairs: list[tuple[str, str]] = []
    if told.cause is not None:
        pairs.append(("follows", text(f"from another verdict: {wrong(told.cause)} ({told.cause.alert})")))
    if told.cost is not None:
        pairs.append(("cost while it fired", element("strong", text(told.cost.arithmetic))))
    if problem.description:
        when = "" if problem.at is None else f", at {clock(problem.at)}"
        pairs.append((f"why{when}", text(problem.description)))
    if problem.recommendation:
        pairs.append(("do", element("strong", text(problem.recommendation))))
    until = "still fires at the end of this report" if problem.lasts else f"until {iso(problem.end)}"
    pairs.append(("when", text(f"since {iso(problem.begin)}, {until}; in all {words(problem.seconds)}")))
    if len(problem.firings) > 1 and problem.worst:
        pairs.append(
            ("of", text(f"{len(problem.firings)} firings; the numbers are of the worst one: {_named(problem)}"))
        )
    # A rule, and so its link, may be anybody's.
    if problem.runbook_url.startswith(("https://", "http://")):
        link = element("a", text(problem.runbook_url), href=problem.runbook_url, rel="noreferrer")
        pairs.append(("runbook", link))
    runbook = to_html(problem.runbook, problem.runbook_url)
    return element(
        "article",
        element("p", text(f"{problem.severity}: {problem.alert}"), class_=f"tag {problem.severity}"),
        element("h3", text(told.says)),
        facts(pairs),
        _beside(problem, told.beside) if told.beside else "",
        details("Runbook", element("div", runbook, class_="runbook")) if runbook else "",
        class_=problem.severity,
        id=f"problem-{number}",
    )


def _named(problem: Problem) -> str:
    hidden = ("alertname", "severity", "training_run")
    pairs = ((name.removeprefix("training_"), value) for name, value in problem.worst.items() if name not in hidden)
    return ", ".join(f"{name} {value}" for name, value in pairs)


def _beside(problem: Problem, beside: Beside) -> str:
    names = [name for name in plots.PHASES if name in beside.named or name in beside.peers]
    more = {name: beside.named.get(name, 0.0) - beside.peers.get(name, 0.0) for name in names}
    most = max((name for name in names if name != "communication"), key=lambda name: more[name], default="")
    rows = [
        [
            name,
            duration(beside.named.get(name, 0.0)),
            duration(beside.peers.get(name, 0.0)),
            ("\u25b6 " if name == most else "") + ("+" if more[name] >= 0 else "\u2212") + duration(abs(more[name])),
        ]
        for name in names
    ]
    headings = ["phase", short(problem) or "named", "its peers", "difference"]
    return table("Time of each phase in a step, while this fired", headings, rows)


def _pictures(report: Report, axis: Axis, problems: Sequence[Problem]) -> str:
    history = report.history
    says = [sentence(problem, None) for problem in problems]
    made = [element("p", text("No verdict fired."))]
    if problems:
        caption = (
            "Times are UTC. A dashed line in the pictures marks where a verdict began: what caused it lies before."
        )
        made = [figure("When verdicts fired", caption, timeline(axis, problems, says))]
    made.append(heat.place_map(axis, history, problems))
    if len(known(history.reports)):
        made.append(heat.own_map(axis, history, problems))
    if len(known(history.wait)):
        made.append(heat.wait_map(axis, history, problems))
    made += [plots.memory_plots(axis, history, problems), plots.phase_plot(axis, history)]
    return "".join(made)


def _footer(report: Report) -> str:
    said = (
        f"Made by laggard {__version__} at {iso(report.made)} from {report.server}. Verdicts, limits and advice "
        f"are those of the rules. What is known now: laggard diagnose --run {report.history.run.name}"
    )
    return element("footer", element("p", text(said), class_="quiet"))
