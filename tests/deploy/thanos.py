"""Thanos as deploy/thanos and docs/deploy.md have it, on loopback: each host of the document is a set of ports."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import defaultdict
from pathlib import Path

import httpx

from laggard_cli.demo.servers import _free_ports  # pyright: ignore[reportPrivateUsage] - as the demo finds them
from laggard_cli.rules import render
from tests.collector.support import ROOT, Processes, missing

THANOS = ROOT / ".cache" / "tools" / "bin" / "thanos"
FILES = ROOT / "deploy" / "thanos"
DOCUMENT = ROOT / "docs" / "deploy.md"
#: Ports that a program listens on unless it is told otherwise, by the flag that tells it.
_LISTENING = {
    "receive": {
        "--http-address": 10902,
        "--grpc-address": 10901,
        "--remote-write.address": 19291,
        "--receive.capnproto-address": 19391,
    },
    "query": {"--http-address": 10902, "--grpc-address": 10901},
    "rule": {"--http-address": 10902, "--grpc-address": 10901},
}
_ADDRESS = re.compile(r"\b(receive-[01]|query|rule|alertmanager):(\d+)\b")
_COMMAND = re.compile(r"^(thanos \w+ @.*?) +# on ([\w-]+)$", re.MULTILINE)
_DATA = "/var/lib/thanos"
_INTERVAL = re.compile(r"^( +interval): (\d+)s$", re.MULTILINE)


def _often(interval: re.Match[str]) -> str:
    """Return an interval of two to eight seconds.

    Two, since each evaluation is a request here; for what is recorded more seldom than in eight nobody wants to wait.
    """
    return f"{interval[1]}: {min(max(int(interval[2]), 2), 8)}s"


class Thanos:
    """The four processes; their hosts by name. Rules are those of the fast profile, somewhat slower."""

    def __init__(self, folder: Path, started: Processes) -> None:
        if not THANOS.exists():
            missing("no Thanos: run scripts/build_thanos.sh, which needs Go")
        self._started = started
        self._free = iter(_free_ports(16))
        self._ports: defaultdict[tuple[str, int], int] = defaultdict(lambda: next(self._free))
        self._folder = folder / "deploy" / "thanos"
        shutil.copytree(FILES, self._folder)
        for path in self._folder.iterdir():
            path.write_text(self._here(path.read_text(encoding="utf-8")), encoding="utf-8")
        #: Where the rules are.
        self.rules = folder / "rules"
        self.rules.mkdir()
        for name, text in render("fast").items():
            # A minute in production; longer than a dead member is asked, which is six seconds in every profile.
            bridged = text.replace("[8s]", "[14s]")
            (self.rules / name).write_text(_INTERVAL.sub(_often, bridged), encoding="utf-8")
        self.commands = {host: shlex.split(line) for line, host in _COMMAND.findall(DOCUMENT.read_text("utf-8"))}

    def url(self, host: str, port: int = 10902) -> str:
        """Return where a port of a host is."""
        return f"http://127.0.0.1:{self._ports[host, port]}"

    def start(self, *hosts: str) -> None:
        """Start what runs on some hosts, by the commands of the document, and wait until each is ready."""
        for host in hosts:
            _, program, *arguments = self.commands[host]
            arguments += self._listening(program, host)
            places = [self._here(each).replace(_DATA, str(self._folder / host)) for each in arguments]
            self._started.start(host, [THANOS, program, *places], at=self._folder)
        for host in hosts:
            self._started.wait(host, f"{self.url(host)}/-/ready")

    def start_usual_query(self) -> None:
        """Start a querier with none of our flags but whom it asks, at ``usual``: it gives a part of what is there."""
        members = [f"--endpoint=127.0.0.1:{self._ports[name, 10901]}" for name in ("receive-0", "receive-1", "rule")]
        labels = ["--query.replica-label=receive_replica", "--query.replica-label=rule_replica"]
        self._started.start("usual", [THANOS, "query", *members, *labels, *self._listening("query", "usual")])
        self._started.wait("usual", f"{self.url('usual')}/-/ready")

    def metric(self, host: str, name: str) -> float:
        """Return the sum of a metric that a process has of itself; KeyError if it has none."""
        lines = httpx.get(f"{self.url(host)}/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line)]
        if not values:
            raise KeyError(name)
        return sum(values)

    def _listening(self, program: str, host: str) -> list[str]:
        return [f"{flag}=127.0.0.1:{self._ports[host, port]}" for flag, port in _LISTENING[program].items()]

    def _here(self, text: str) -> str:
        return _ADDRESS.sub(lambda found: f"127.0.0.1:{self._ports[found[1], int(found[2])]}", text)
