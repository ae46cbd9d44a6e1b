"""Thanos as deploy/thanos and docs/deploy.md have it, on loopback: each host of the document is a set of ports."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from pathlib import Path

from lab.scale.thanos import THANOS, Topology
from laggard_cli.rules import render
from laggard_cli.ways import direct
from tests.collector.support import Processes, missing

_INTERVAL = re.compile(r"^( +interval): (\d+)s$", re.MULTILINE)


def _often(interval: re.Match[str]) -> str:
    """Return an interval of two to eight seconds.

    Two, since each evaluation is a request here; for what is recorded more seldom than in eight nobody wants to wait.
    """
    return f"{interval[1]}: {min(max(int(interval[2]), 2), 8)}s"


def write_rules(folder: Path) -> None:
    """Write the rules of the fast profile, somewhat slower."""
    folder.mkdir()
    for name, text in render("fast").items():
        # A minute in production; longer than a dead member is asked, which is six seconds in every profile.
        bridged = text.replace("[8s]", "[14s]")
        (folder / name).write_text(_INTERVAL.sub(_often, bridged), encoding="utf-8")


class Thanos(Topology):
    """The four processes. Rules are those of the fast profile, somewhat slower."""

    def __init__(self, folder: Path, started: Processes) -> None:
        if not THANOS.exists():
            missing("no Thanos: run scripts/tools/build_thanos.sh, which needs Go")
        super().__init__(folder)
        self._started = started
        #: Where the rules are.
        self.rules = folder / "rules"
        write_rules(self.rules)

    def start(self, *hosts: str) -> None:
        """Start what runs on some hosts, by the commands of the document, and wait until each is ready."""
        for host in hosts:
            self._started.start(host, self.command(host), at=self.files)
        for host in hosts:
            self._started.wait(host, f"{self.url(host)}/-/ready")

    @contextlib.contextmanager
    def away(self, host: str) -> Generator[None, None, None]:
        """Kill what runs on a host, as a crash would; it is started again with the end of the context."""
        self._started.kill(host)
        try:
            yield
        finally:
            self.start(host)

    def start_usual_query(self) -> None:
        """Start a querier with none of our flags but whom it asks, at ``usual``: it gives a part of what is there."""
        asked = [self.url(name, 10901).removeprefix("http://") for name in ("receive-0", "receive-1", "rule")]
        members = [f"--endpoint={address}" for address in asked]
        labels = ["--query.replica-label=receive_replica", "--query.replica-label=rule_replica"]
        self._started.start("usual", [THANOS, "query", *members, *labels, *self.listening("query", "usual")])
        self._started.wait("usual", f"{self.url('usual')}/-/ready")

    def metric(self, host: str, name: str) -> float:
        """Return the sum of a metric that a process has of itself; KeyError if it has none."""
        lines = direct().get(f"{self.url(host)}/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line)]
        if not values:
            raise KeyError(name)
        return sum(values)
