"""A scenario: what happens in a cluster, and which alerts fire when. Written as one test of promtool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import promql_parser
import yaml
from promql_parser import Expr, VectorSelector

from notation import encode
from paths import SECOND, Line, in_cluster
from world import RUN, Rank, World

Yaml = dict[str, object]

#: Where alerts say that their runbooks are.
RUNBOOKS = "https://github.com/laggard-project/laggard/blob/main/rules/runbooks"

_RULES = Path(__file__).resolve().parents[1] / "rules"


@cache
def _given() -> dict[str, dict[str, str]]:
    """Return for each alert of the pack the labels that it has whatever it is about: its severity and its kind."""
    files = (yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in _RULES.glob("alert*.yml"))
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule]
    return {rule["alert"]: {name: rule["labels"][name] for name in ("severity", "training_kind")} for rule in rules}


#: Stands, among the matchers of an expression, for the runs of the scenario, which may be played beside others.
MINE = "<runs>"
_ALERTS = f'alertstate="firing", alertname!="LaggardWatchdog", {MINE}'
#: vmalert adds the name of the group.
_FIRING = f"count without (alertstate, alertgroup) (ALERTS{{{_ALERTS}}})"
_EVER = f"group by (alertname, training_run, training_rank) (last_over_time(ALERTS{{{_ALERTS}}}[2h]))"
#: A rank under two phases or hosts, or a run twice that no host or group tells apart.
_TWICE = (
    "max_over_time((count by (alertname, training_run, training_rank) "
    f'(ALERTS{{{_ALERTS}, host_name="", training_rank=""}} or ALERTS{{{_ALERTS}, training_rank!=""}})'
    ")[2h:1m]) > 1"
)

#: Series that are the same for all clusters.
_OF_NO_CLUSTER = re.compile(r'^laggard_(threshold|rules_info){|alertname="LaggardWatchdog"')

_HOST = re.compile(r"host-[a-z]")
#: Names of runs and hosts that tell a scenario from others when they have its name as well.
_NAME = re.compile(r'(?<=training_run=")[^"]+|\brun-[a-z]\b|\b' + _HOST.pattern + r"\b")


@dataclass(frozen=True)
class _Expected:
    """What an expression gives at a moment: labels in braces, and values."""

    expression: str
    moment: str
    samples: Mapping[str, float]

    def test(self, place: str) -> Yaml:
        """Return what promtool expects of the runs of a place, and of what has no run."""
        mine = f'training_run=~"|.+-{place}"' if place else 'training_run=~".*"'
        expression = _placed(self.expression, place).replace(MINE, mine)
        entry: Yaml = {"expr": expression, "eval_time": self.moment}
        if self.samples:
            entry["exp_samples"] = [
                {"labels": _placed(labels, place), "value": value} for labels, value in self.samples.items()
            ]
        return entry


@dataclass(frozen=True)
class Firing:
    """An alert that fires, with what tells it from others; severity and kind are those of the pack."""

    alert: str
    rank: int | None = None
    phase: str = ""
    host: str = ""
    source: str = ""
    run: str = RUN
    #: Labels of this kind of alert alone.
    more: tuple[tuple[str, str], ...] = ()

    def labels(self) -> dict[str, str]:
        """Return the labels that the alert has beside its name."""
        found = {
            **_given()[self.alert],
            "training_run": self.run,
            "training_rank": "" if self.rank is None else str(self.rank),
            "training_phase": self.phase,
            "training_source": self.source,
            "host_name": self.host,
            **dict(self.more),
        }
        return {name: value for name, value in found.items() if value}


class Scenario:
    """Collects what is expected while its world goes on."""

    def __init__(self, ranks: Iterable[Rank], tick: int = 15) -> None:
        self.world = World(ranks, tick)
        self._expressions: list[_Expected] = []
        self._alerts: list[Yaml] = []
        self._extra: list[Line] = []
        #: When each alert was first expected.
        self.first: dict[str, str] = {}

    def __getitem__(self, rank: int) -> Rank:
        """Return the rank of that number."""
        return self.world[rank]

    def after(self, minutes: float = 0, seconds: float = 0) -> None:
        """Let the cluster go on for as long as that."""
        self.world.advance(60 * minutes + seconds)

    def fires(self, *alerts: Firing) -> None:
        """Expect exactly these alerts at this moment, of any kind and run."""
        self._expect(_FIRING, {_braced({"alertname": each.alert, **each.labels()}): 1 for each in alerts})
        for each in alerts:
            self.first.setdefault(each.alert, self._moment())

    def silent(self) -> None:
        """Expect that no alert fires at this moment."""
        self.fires()

    def never(self) -> None:
        """Expect that no alert has fired so far."""
        self._expect(_EVER, {})

    def value(self, expression: str, samples: Mapping[str, float]) -> None:
        """Expect the samples of an expression at this moment: labels in braces, and values."""
        self._expect(expression, samples)

    def says(self, *alerts: Firing, **annotations: str) -> None:
        """Expect these alerts of one name at this moment, with exactly these annotations; {rank} stands for theirs."""
        expected = [
            {
                "exp_labels": alert.labels(),
                "exp_annotations": {
                    name: text.replace("{rank}", str(alert.rank)) for name, text in annotations.items()
                },
            }
            for alert in alerts
        ]
        self._alerts.append({"eval_time": self._moment(), "alertname": alerts[0].alert, "exp_alerts": expected})

    def given(self, metric: str, value: float, /, **labels: str) -> None:
        """Add a series that neither rank nor exporter exposes, with one value from the beginning on."""
        self._extra.append((metric + _braced(labels), f"{value}x400"))

    def threshold(self, name: str, value: float, run: str = RUN) -> None:
        """Override a threshold for a run."""
        self.given("laggard_threshold_override", value, name=name, training_run=run)

    @property
    def is_apart(self) -> bool:
        """Whether it needs a cluster of its own: what it expects or gives is not of runs that their names tell apart.

        The words of an alert are among those, for they are compared with what all alerts of its name say.
        """
        return bool(self._alerts or self.world.devices) or not (
            all(MINE in each.expression or 'training_run="' in each.expression for each in self._expressions)
            and all('training_run="' in series for series, _ in self._extra)
            and all(_HOST.fullmatch(rank.host) for rank in self.world.ranks)
        )

    @property
    def is_everywhere(self) -> bool:
        """Whether it has to happen in each cluster: what it expects is said of all, or follows from what has none."""
        return bool(self._alerts) or any(_OF_NO_CLUSTER.search(series) for series, _ in self._extra)

    def test(
        self,
        name: str,
        wording: Mapping[str, Sequence[Yaml]] | None = None,
        *,
        place: str = "",
        second: str = "",
        cluster: str | None = None,
    ) -> Yaml:
        """Return the scenario as one entry of a promtool file.

        Args:
            name: the test's name.
            wording: alert to what its alerts say when they first fire, as promtool expects them.
            place: what all names of runs and hosts end with, and what is expected is said of them and of what has no
                run at all: for scenarios that are played side by side.
            second: the path by which every series comes a second time, by its name.
            cluster: where it happens, beside another one; empty for the cluster that no label names.
        """
        worded: list[Yaml] = [
            {"eval_time": self.first[alert], "alertname": alert, "exp_alerts": list(expected)}
            for alert, expected in (wording or {}).items()
        ]
        lines: list[Line] = [
            *((metric + _braced(dict(labels)), line) for (metric, labels), line in self.world.series().items()),
            *self._extra,
        ]
        series: list[Yaml] = [
            {"series": _placed(text, place), "values": line if isinstance(line, str) else encode(line)}
            for text, line in in_cluster(SECOND[second](lines) if second else lines, cluster or "")
        ]
        entry: Yaml = {"name": name, "interval": f"{self.world.tick}s", "input_series": series}
        alerts = [*self._alerts, *worded]
        twice = _Expected(_TWICE, self._moment(), {})
        expressions = [each.test(place) for each in (*self._expressions, twice)]
        if cluster is not None:
            expressions = [_asked_in(cluster, each) for each in expressions]
        if cluster:
            alerts = [_alert_in(cluster, each) for each in alerts]
        if alerts:
            entry["alert_rule_test"] = alerts
        entry["promql_expr_test"] = expressions
        return entry

    def _expect(self, expression: str, samples: Mapping[str, float]) -> None:
        self._expressions.append(_Expected(expression, self._moment(), samples))

    def _moment(self) -> str:
        """Return the time of the last scrape."""
        minutes, seconds = divmod(self.world.now - self.world.tick, 60)
        return f"{minutes}m{seconds}s"


def beside(one: Yaml, other: Yaml) -> Yaml:
    """Return what happens in two clusters as one entry of a promtool file.

    What alerts say is asked of both at once, so what says something must be the same play in both.
    """
    mine, theirs = (cast("list[dict[str, Any]]", test.get("alert_rule_test", [])) for test in (one, other))
    alerts = [
        {**each, "exp_alerts": [*each["exp_alerts"], *same["exp_alerts"]]}
        for each, same in zip(mine, theirs, strict=True)
    ]
    lists = {
        key: [*cast("list[Yaml]", one[key]), *cast("list[Yaml]", other[key])]
        for key in ("input_series", "promql_expr_test")
    }
    return {**one, **({"alert_rule_test": alerts} if alerts else {}), **lists}


def _alert_in(cluster: str, test: Yaml) -> Yaml:
    """Return what is expected of an alert in a cluster."""
    expected = [
        {
            "exp_labels": {**each["exp_labels"], "cluster": cluster},
            "exp_annotations": {
                key: text.replace("?var-training_run", f"?var-cluster={cluster}&var-training_run")
                for key, text in each["exp_annotations"].items()
            },
        }
        for each in cast("list[dict[str, dict[str, str]]]", test["exp_alerts"])
    ]
    return {**test, "exp_alerts": expected}


def _asked_in(cluster: str, test: Yaml) -> Yaml:
    """Return what is expected of an expression, asked of one cluster alone; the name of a cluster may be empty."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, VectorSelector) or _OF_NO_CLUSTER.search(str(node)):
            return None
        return promql_parser.parse(str(node).replace("{", f'{{cluster="{cluster}", ', 1).replace(", }", "}"))

    asked = str(promql_parser.transform(promql_parser.parse(str(test["expr"])), post_visit=visit))
    if not cluster or f'cluster="{cluster}"' not in asked:
        return {**test, "expr": asked}
    one: Yaml = {**test, "expr": f"max without (cluster) ({asked})"}
    if "exp_samples" in test:
        # An aggregation has no name.
        one["exp_samples"] = [
            {**each, "labels": re.sub(r"^[\w:]+(?={)", "", re.sub(r'__name__="[^"]*"(, )?', "", str(each["labels"])))}
            for each in cast("list[Yaml]", test["exp_samples"])
        ]
    return one


def _placed(text: str, place: str) -> str:
    """Let the names of runs and hosts end with that of a place."""
    return _NAME.sub(rf"\g<0>-{place}", text) if place else text


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


#: A function that plays a scenario; its docstring is the promise, its name the test's.
Play = Callable[[], Scenario]


def ranks(count: int, per_host: int = 8, run: str = RUN) -> list[Rank]:
    """Return as many healthy ranks on hosts host-a, host-b and so on."""
    return [Rank(number, f"host-{chr(97 + number // per_host)}", run=run) for number in range(count)]
