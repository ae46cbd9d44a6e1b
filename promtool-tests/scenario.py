"""A scenario: what happens in a cluster, and which alerts fire when. Written as one test of promtool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from notation import encode
from world import RUN, Rank, World

Yaml = dict[str, object]

#: Severity of the alerts that are no warnings.
SEVERITY = {
    "TrainingRankDied": "critical",
    "TrainingRankFrozen": "critical",
    "TrainingRestartLoop": "critical",
    "TrainingStalled": "critical",
    "TrainingRankMissing": "critical",
    "TrainingJitter": "info",
    "TrainingMemoryHeadroom": "info",
    "TrainingGpuLost": "critical",
    "TrainingGpuXidCritical": "critical",
    "TrainingGpuPowerCapped": "info",
    "TrainingGpuUnderused": "info",
    "TrainingGpuTensorIdle": "info",
    "TrainingGpuHeld": "info",
    "TrainingLossNotFinite": "critical",
    "TrainingGradientNormSpike": "info",
}

_WATCHDOG = 'alertname!="LaggardWatchdog"'
#: vmalert adds the name of the group.
_FIRING = f'count without (alertstate, alertgroup) (ALERTS{{alertstate="firing", {_WATCHDOG}}})'
_EVER = (
    "group by (alertname, training_run, training_rank) "
    f'(last_over_time(ALERTS{{alertstate="firing", {_WATCHDOG}}}[2h]))'
)
#: A rank under two phases or hosts, or a run twice that no host or group tells apart.
_TWICE = (
    "max_over_time((count by (alertname, training_run, training_rank) "
    '(ALERTS{alertstate="firing", host_name="", training_rank=""} or ALERTS{alertstate="firing", training_rank!=""})'
    ")[2h:1m]) > 1"
)


@dataclass(frozen=True)
class Firing:
    """An alert that fires, with what tells it from others; the severity follows from its name."""

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
            "severity": SEVERITY.get(self.alert, "warning"),
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
        self._expressions: list[Yaml] = []
        self._alerts: list[Yaml] = []
        self._extra: list[Yaml] = []
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
        samples = [{"labels": _braced({"alertname": each.alert, **each.labels()}), "value": 1} for each in alerts]
        self._expect(_FIRING, samples)
        for each in alerts:
            self.first.setdefault(each.alert, self._moment())

    def silent(self) -> None:
        """Expect that no alert fires at this moment."""
        self.fires()

    def never(self) -> None:
        """Expect that no alert has fired so far."""
        self._expect(_EVER, [])

    def value(self, expression: str, samples: Mapping[str, float]) -> None:
        """Expect the samples of an expression at this moment: labels in braces, and values."""
        self._expect(expression, [{"labels": labels, "value": value} for labels, value in samples.items()])

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
        self._extra.append({"series": metric + _braced(labels), "values": f"{value}x400"})

    def threshold(self, name: str, value: float, run: str = RUN) -> None:
        """Override a threshold for a run."""
        self.given("laggard_threshold_override", value, name=name, training_run=run)

    def test(self, name: str, wording: Mapping[str, Sequence[Yaml]] | None = None) -> Yaml:
        """Return the scenario as one entry of a promtool file.

        Args:
            name: the test's name.
            wording: alert to what its alerts say when they first fire, as promtool expects them.
        """
        worded: list[Yaml] = [
            {"eval_time": self.first[alert], "alertname": alert, "exp_alerts": list(expected)}
            for alert, expected in (wording or {}).items()
        ]
        series = [
            {"series": metric + _braced(dict(labels)), "values": encode(line)}
            for (metric, labels), line in self.world.series().items()
        ]
        entry: Yaml = {"name": name, "interval": f"{self.world.tick}s", "input_series": series + self._extra}
        if alerts := [*self._alerts, *worded]:
            entry["alert_rule_test"] = alerts
        entry["promql_expr_test"] = [*self._expressions, self._expected(_TWICE, [])]
        return entry

    def _expect(self, expression: str, samples: Sequence[Mapping[str, object]]) -> None:
        self._expressions.append(self._expected(expression, samples))

    def _expected(self, expression: str, samples: Sequence[Mapping[str, object]]) -> Yaml:
        entry: Yaml = {"expr": expression, "eval_time": self._moment()}
        if samples:
            entry["exp_samples"] = list(samples)
        return entry

    def _moment(self) -> str:
        """Return the time of the last scrape."""
        minutes, seconds = divmod(self.world.now - self.world.tick, 60)
        return f"{minutes}m{seconds}s"


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


#: A function that plays a scenario; its docstring is the promise, its name the test's.
Play = Callable[[], Scenario]


def ranks(count: int, per_host: int = 8, run: str = RUN) -> list[Rank]:
    """Return as many healthy ranks on hosts host-a, host-b and so on."""
    return [Rank(number, f"host-{chr(97 + number // per_host)}", run=run) for number in range(count)]
