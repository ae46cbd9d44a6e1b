"""What runs while ranks are simulated: what serves their pages or pushes for them, Collectors, and a server."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from lab.scale import prometheus
from lab.scale.collector import Collectors
from lab.scale.jobs import jobs
from lab.scale.programs import Programs, programs
from lab.scale.prometheus import Server
from lab.scale.server import Push, Show, serve
from lab.scale.thanos import thanos
from laggard_cli.demo.servers import free_ports
from laggard_cli.errors import CommandError
from laggard_cli.rules import render

#: Ways from ranks to the server, and what evaluates the rules.
PATHS = ("scrape", "otlp")
ENGINES = ("prometheus", "thanos")
#: So many ranks share an agent, which stands for the agents of all their nodes.
_RANKS_OF_AN_AGENT = 2500


@dataclass(frozen=True)
class Pace:
    """How fast all goes. Seconds."""

    interval: float
    #: Values change once in so much.
    tick: float
    #: From the beginning until all have been seen twice; between two looks at the server.
    settled: float
    look: float
    #: A rank's processes start and compile in so much.
    startup: float
    compile: float


PACES = {
    "production": Pace(15.0, tick=3.0, settled=90.0, look=5.0, startup=20.0, compile=5.0),
    "fast": Pace(2.0, tick=1.0, settled=10.0, look=2.0, startup=1.0, compile=0.0),
}


@dataclass(frozen=True)
class Kill:
    """A program that is killed at a time, and started again a while later. Seconds."""

    program: str
    at: float
    away: float = 5.0


@dataclass(frozen=True)
class Plan:
    """How runs are played: see ``python -m lab.scale --help``. Seconds."""

    program: str
    seconds: float
    fault: float
    step: float
    rules: bool = True
    path: str = "scrape"
    engine: str = "prometheus"
    profile: str = "production"
    #: 0: by the number of ranks.
    agents: int = 0
    kills: tuple[Kill, ...] = ()
    #: So much longer verdicts may take to stand again after what was killed.
    patience: float = 0.0
    dashboards: bool = False

    @property
    def pace(self) -> Pace:
        """How fast it goes."""
        return PACES[self.profile]


@dataclass
class Site:
    """What runs."""

    started: Programs
    server: Server
    #: The programs that are the server.
    servers: list[str]
    collectors: Collectors | None
    pages: psutil.Process
    told: Connection
    began: float


@contextmanager
def site(ranks: int, plan: Plan, folder: Path) -> Generator[Site, None, None]:
    """Start all of it in a folder, and end it. Raises :class:`CommandError` where a server cannot be had."""
    pushes, pace = plan.path == "otlp", plan.pace
    runs = [
        replace(job, startup=pace.startup, compile=pace.compile, push=pushes, lost_scrapes=0.0 if pushes else 0.002)
        for job in jobs(ranks, plan.step, plan.fault)
    ]
    ours, theirs = multiprocessing.Pipe()
    show = Show(runs, pace.tick, pushed=pushes)
    pages = multiprocessing.get_context("spawn").Process(target=serve, args=(show, theirs), daemon=True)
    pages.start()
    theirs.close()
    try:
        with programs(folder) as started:
            port, paths, began = _told(ours)
            server = _server(started, plan, port, paths)
            servers = started.names
            collectors = None
            if pushes:
                agents = plan.agents or -(-ranks // _RANKS_OF_AN_AGENT)
                collectors = Collectors(started, agents, server.write, (port, paths), pace.interval)
                ours.send(Push(collectors.ports, pace.interval))
            try:
                yield Site(started, server, servers, collectors, psutil.Process(pages.pid), ours, began)
            finally:
                server.close()
    finally:
        pages.terminate()
        pages.join()


def _server(started: Programs, plan: Plan, port: int, paths: list[str]) -> Server:
    """Start who stores and evaluates."""
    rules = started.folder / "rules"
    rules.mkdir()
    for name, text in render(plan.profile).items() if plan.rules else ():
        (rules / name).write_text(_not_below(text, plan.pace.interval), encoding="utf-8")
    if plan.engine == "thanos":
        return thanos(started)
    (free,) = free_ports(1)
    scraped = prometheus.targets(port, paths) if plan.path == "scrape" else []
    return prometheus.start(
        started, plan.program, address=f"127.0.0.1:{free}", scraped=scraped, rules=rules, interval=plan.pace.interval
    )


def _not_below(text: str, seconds: float) -> str:
    """Return rules whose groups are not evaluated more often than samples come."""
    return re.sub(
        r"^( +interval): (\d+)s$",
        lambda found: f"{found[1]}: {max(seconds, int(found[2])):g}s",
        text,
        flags=re.MULTILINE,
    )


def _told(pages: Connection) -> tuple[int, list[str], float]:
    """Return the port, the paths and the beginning of the pages."""
    try:
        return pages.recv()
    except EOFError:
        raise CommandError("what serves the pages ended before it served") from None
