"""Plays runs under a server and gathers what it costs and what it says."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

from lab.scale.arrived import wait_and_count
from lab.scale.collector import GATEWAY, Flow
from lab.scale.dashboards import dashboard_seconds
from lab.scale.jobs import SLOW_RUN, culprits, jobs
from lab.scale.programs import Usage
from lab.scale.prometheus import Reading, Server
from lab.scale.server import END
from lab.scale.site import Kill, Plan, Site, site
from laggard_cli.errors import CommandError

#: A run whose ranks begin anew is nobody's delay.
_LAG = (
    'max(time() - max by (training_run, training_rank) (timestamp(training_steps_total{job="training",'
    'training_run!="other-0"})))'
)


@dataclass
class Pushed:
    """What became of what ranks pushed."""

    #: Data points that agents accepted from ranks, and on average in a second; requests that they refused, or did not
    #: answer; and pushes that ranks gave up, whose sums the next one has.
    points: int = 0
    points_each_second: float = 0.0
    refused: int = 0
    unanswered: int = 0
    given_up: int = 0
    #: By the Collectors' own word: points that agents took from ranks and exporters, that they refused, that the
    #: gateway wrote, and that it could not write, which agents keep. Of one that was killed, since then.
    accepted_by_agents: float = 0.0
    refused_by_agents: float = 0.0
    written: float = 0.0
    not_written: float = 0.0
    #: Most that waited in the queues of agents.
    waiting: float = 0.0
    #: Samples that were accepted; those of them that did not arrive, by their number; by their times, of three metrics.
    samples: int = 0
    samples_lost: int = 0
    times_lost: int = 0
    #: From a push until it can be asked for, of the last rank at the worst look.
    lag_seconds: float = 0.0


@dataclass
class Result:
    """What so many ranks cost, and what was said of them."""

    ranks: int
    #: Seconds of a rank's own work in a step.
    step: float
    rules: bool
    series: float = 0.0
    samples_each_second: float = 0.0
    #: Processors in use by the server on average, after the first minutes; and by what serves the pages and pushes.
    processors: float = 0.0
    pages_processors: float = 0.0
    resident_bytes: int = 0
    #: Of the groups' evaluations: the sum over all groups, in the mean, and the longest of one group. Seconds.
    rules_seconds: float = 0.0
    longest_group_seconds: float = 0.0
    #: The group that took most of the time until its next evaluation, and that share.
    fullest_group: str = ""
    fullest_group_share: float = 0.0
    missed_evaluations: float = 0.0
    failed_evaluations: float = 0.0
    failed_scrapes: float = 0.0
    slowest_scrape_seconds: float = 0.0
    #: Seconds from the fault to the alert, by its name and whom it names.
    alerts: dict[str, float] = field(default_factory=dict[str, float])
    #: What had to be said and was not.
    not_said: list[str] = field(default_factory=list[str])
    path: str = "scrape"
    engine: str = "prometheus"
    #: Looks at which what had been said, and still held, was not said, and at which the server did not answer.
    taken_back: int = 0
    not_answered: int = 0
    #: What still had to be said in the end and was not.
    not_standing: list[str] = field(default_factory=list[str])
    #: Processors in use and most memory, by program.
    program_processors: dict[str, float] = field(default_factory=dict[str, float])
    program_bytes: dict[str, int] = field(default_factory=dict[str, int])
    pushed: dict[str, float] = field(default_factory=dict[str, float])
    #: How long all queries of each dashboard take, one after the other, seconds.
    dashboards: dict[str, float] = field(default_factory=dict[str, float])
    #: The first sign that it is too much, and when, seconds.
    broke: str = ""
    broke_at: float = 0.0

    @property
    def held(self) -> bool:
        """Whether nothing broke, nothing was lost, and all was said that had to be."""
        return not (self.broke or self.not_said or self.pushed.get("samples_lost") or self.pushed.get("times_lost"))

    @property
    def in_use(self) -> int:
        """Most memory of all that ran, in bytes, what simulates the ranks included."""
        return sum(self.program_bytes.values())


def measure(ranks: int, plan: Plan) -> Result:
    """Play runs of so many ranks together. Raises :class:`CommandError` where a server cannot be had."""
    result = Result(ranks, plan.step, rules=plan.rules, path=plan.path, engine=plan.engine)
    with tempfile.TemporaryDirectory(prefix="laggard-scale-") as name, site(ranks, plan, Path(name)) as running:
        return _Watch(running, result, plan).run()


class _Watch:
    """Looks at all that runs, again and again."""

    def __init__(self, site: Site, result: Result, plan: Plan) -> None:
        self._site, self._result, self._plan = site, result, plan
        self._fault = site.began + plan.fault
        self._wanted = [
            f"{each.alert} {each.run} {each.rank}" for each in culprits(jobs(result.ranks, plan.step, plan.fault))
        ]
        self._said: dict[str, float] = {}
        self._first: Reading | None = None
        self._used: dict[str, float] = {}
        self._pushed = Pushed()
        self._firing: set[str] = set()
        self._rules_seconds: list[float] = []
        self._away: dict[str, Kill] = {}
        self._kills = sorted(plan.kills, key=lambda kill: kill.at)

    def run(self) -> Result:
        """Look until the time is over; return what was seen."""
        site, plan, result = self._site, self._plan, self._result
        while self._goes_on():
            time.sleep(plan.pace.look)
            self._kill_and_start()
            try:
                self._look()
            except CommandError:
                result.not_answered += 1
        for name in list(self._away):
            site.started.again(self._away.pop(name).program)
        return self._end()

    def _goes_on(self) -> bool:
        over = time.time() - self._site.began - self._plan.seconds
        return over < 0 or (over < self._plan.patience and bool(self._not_standing()))

    def _not_standing(self) -> list[str]:
        return [name for name in self._wanted if name not in self._firing]

    def _kill_and_start(self) -> None:
        now, started = time.time() - self._site.began, self._site.started
        for name, kill in list(self._away.items()):
            if now >= kill.at + kill.away:
                started.again(name)
                del self._away[name]
        while self._kills and now >= self._kills[0].at:
            kill = self._kills.pop(0)
            started.kill(kill.program)
            self._away[kill.program] = kill

    def _look(self) -> None:
        site, result = self._site, self._result
        reading = site.server.read()
        usage = self._usage()
        for name, used in usage.items():
            result.program_bytes[name] = max(result.program_bytes.get(name, 0), used.resident_bytes)
        together = sum(usage[name].resident_bytes for name in site.servers if name in usage)
        result.resident_bytes = max(result.resident_bytes, together)
        self._firing.clear()
        for labels in site.server.firing():
            name = f"{labels['alertname']} {labels.get('training_run', '')} {labels.get('training_rank', '')}"
            self._firing.add(name)
            self._said.setdefault(name, reading.time - self._fault)
        result.taken_back += sum(self._said.get(name, 0) > 0 and name not in self._firing for name in self._wanted)
        if self._first is None:
            if reading.time > site.began + self._plan.pace.settled:
                self._first = reading
                self._used = {name: used.processor_seconds for name, used in usage.items()}
            return
        self._rules_seconds.append(sum(reading.groups.values()))
        result.longest_group_seconds = max(result.longest_group_seconds, *reading.groups.values(), 0.0)
        for group, seconds in reading.groups.items():
            share = seconds / reading.intervals[group]
            if share > result.fullest_group_share:
                result.fullest_group, result.fullest_group_share = Path(group).name, round(share, 4)
        if site.collectors is None:
            failed = site.server.value("count(up == 0) or vector(0)")
            result.failed_scrapes = max(result.failed_scrapes, failed)
        else:
            self._look_at_flow(site.collectors.flows(), site.server)
        self._break(reading)

    def _look_at_flow(self, flows: dict[str, Flow], server: Server) -> None:
        pushed, interval = self._pushed, self._plan.pace.interval
        agents = [flow for name, flow in flows.items() if name != GATEWAY]
        pushed.accepted_by_agents = max(pushed.accepted_by_agents, sum(flow.accepted for flow in agents))
        pushed.refused_by_agents = max(pushed.refused_by_agents, sum(flow.refused for flow in agents))
        if gateway := flows.get(GATEWAY):
            pushed.written = max(pushed.written, gateway.sent)
            pushed.not_written = max(pushed.not_written, gateway.refused)
        pushed.waiting = max(pushed.waiting, sum(flow.waiting for flow in agents))
        # A rank's newest sample was pushed some time within the interval before.
        pushed.lag_seconds = max(pushed.lag_seconds, server.value(_LAG) - interval)

    def _break(self, reading: Reading) -> None:
        """Keep the first sign that it is too much; where something is killed, three of them are no such signs."""
        assert self._first is not None
        result, killed = self._result, bool(self._plan.kills)
        signs = {
            "an evaluation was missed": reading.missed > self._first.missed,
            "an evaluation failed": reading.failed > self._first.failed and not killed,
            "a scrape failed": result.failed_scrapes > 0,
            "a query was not answered": result.not_answered > 0 and not killed,
            "an agent refused points": self._pushed.refused_by_agents > 0,
            "the gateway could not write points": self._pushed.not_written > 0 and not killed,
        }
        if not result.broke and any(signs.values()):
            result.broke = next(sign for sign, seen in signs.items() if seen)
            result.broke_at = round(reading.time - self._site.began, 1)

    def _usage(self) -> dict[str, Usage]:
        site = self._site
        found = {name: site.started.usage(name) for name in site.started.names if name not in self._away}
        used = site.pages.cpu_times()
        return {**found, "ranks": Usage(used.user + used.system, site.pages.memory_info().rss)}

    def _end(self) -> Result:
        site, result, first = self._site, self._result, self._first
        last = site.server.read()
        if first is None:
            raise CommandError(f"the server answered nothing within {self._plan.seconds:g} s")
        passed = last.time - first.time
        for name, used in self._usage().items():
            result.program_processors[name] = (used.processor_seconds - self._used[name]) / passed
        result.series = last.series
        result.samples_each_second = (last.samples - first.samples) / passed
        result.processors = sum(result.program_processors[name] for name in site.servers)
        result.pages_processors = result.program_processors["ranks"]
        result.rules_seconds = mean(self._rules_seconds or [0.0])
        result.missed_evaluations = last.missed - first.missed
        result.failed_evaluations = last.failed - first.failed
        if self._plan.dashboards:
            result.dashboards = dashboard_seconds(site.server, SLOW_RUN, last.time - site.began)
        if site.collectors is None:
            result.slowest_scrape_seconds = site.server.value("max(scrape_duration_seconds)")
        else:
            self._count()
        ordered = sorted(self._said.items(), key=lambda item: item[1])
        result.alerts = {name: round(seconds, 1) for name, seconds in ordered}
        if result.rules:
            result.not_said = [name for name in self._wanted if self._said.get(name, 0) <= 0]
            result.not_standing = self._not_standing()
        return result

    def _count(self) -> None:
        """Push no more, wait until what was accepted has arrived, and count what did not."""
        site, pushed = self._site, self._pushed
        site.told.send(END)
        tally = site.told.recv()
        lost = wait_and_count(tally, site.server, site.began)
        pushed.points, pushed.samples = tally.points, sum(tally.samples.values())
        pushed.points_each_second = tally.points / tally.seconds
        pushed.refused, pushed.unanswered, pushed.given_up = tally.refused, tally.unanswered, tally.given_up
        pushed.samples_lost, pushed.times_lost = lost.samples, lost.times
        self._result.pushed = asdict(pushed)
