"""A rank that stands still for minutes: every command says so each time it is asked, and names nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.shared import statefile
from laggard_cli.demo.servers import Servers, free_ports
from tests.field.live.launch import BINARIES, job
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.field, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "live" / "ends.py"
CULPRIT = 1
#: A standstill of five minutes, and how often each command is asked meanwhile.
_STOPPED_SECONDS = 300.0
_ASKED_EVERY = 10.0
#: From the standstill to the verdict, and from its end to none.
_TOLD_SECONDS = 40.0
_OVER_SECONDS = 180.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A node exporter, and Prometheus with the rules."""
    with Servers(tmp_path, "stopped", 2) as running:
        yield running


class Asked:
    """The commands of a user, against one server."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.watched = servers.folder / "watched.jsonl"

    def _command(self, command: str, *arguments: str) -> list[str]:
        server = self._servers.addresses["prometheus"]
        return [str(BINARIES / "laggard"), command, "--prometheus", server, "--run", "stopped", *arguments]

    def ask(self, command: str, *arguments: str) -> str:
        """Return what a command prints; it ends well, and there is no traceback."""
        done = subprocess.run(
            self._command(command, *arguments), capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr
        return done.stdout

    def healthy(self) -> bool:
        """Return whether the server knows the run, and no fault of it."""
        done = subprocess.run(self._command("diagnose"), capture_output=True, text=True, timeout=60, check=False)
        return "healthy" in done.stdout

    def culprits(self) -> set[tuple[str, str]]:
        """Return alert and rank of each verdict that names one."""
        return _named(_strict(self.ask("diagnose", "--json")))

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch meanwhile, as JSON lines."""
        with self.watched.open("wb") as file:
            watching = subprocess.Popen(self._command("diagnose", "--json", "--watch", "5"), stdout=file)
        try:
            yield
        finally:
            watching.send_signal(signal.SIGINT)
            assert watching.wait(20) in {0, 130}


def _strict(text: str) -> Any:
    """Read JSON that is JSON: NaN and infinity are none."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _named(answer: Any) -> set[tuple[str, str]]:
    return {(each["alert"], each["rank"]) for run in answer["runs"] for each in run["verdicts"] if each["rank"]}


def _process(servers: Servers, rank: int) -> int:
    processes = map(statefile.read, servers.state_directories[0].glob(f"*{statefile.SUFFIX}"))
    return next(process.facts.pid for process in processes if process.facts.rank == rank)


def test_a_standstill_of_five_minutes_is_told_each_time(servers: Servers, tmp_path: Path) -> None:
    """`diagnose` in all its forms and `report` name the stopped rank, and after it goes on nobody."""
    asked = Asked(servers)
    states = str(servers.state_directories[0])
    launcher = ["torchrun", f"--master-port={free_ports(1)[0]}", "--nproc-per-node=2", str(PROGRAM), "request"]
    with job(servers, "stopped", *launcher), contextlib.ExitStack() as watching:
        wait_until(asked.healthy, 90, "the run was never healthy")
        watching.enter_context(asked.watch())
        pid = _process(servers, CULPRIT)
        os.kill(pid, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            took = wait_until(lambda: bool(asked.culprits()), _TOLD_SECONDS, "nobody was named")
            print(f"named after {took:.0f} s")
            while time.monotonic() < stopped + _STOPPED_SECONDS:
                culprits = asked.culprits()
                assert {rank for _, rank in culprits} == {str(CULPRIT)}, (time.monotonic() - stopped, culprits)
                text = asked.ask("diagnose")
                assert f"rank {CULPRIT}" in text, text
                assert "healthy" not in text, text
                stacks = asked.ask("diagnose", "--stacks", "--state-dir", states)
                assert "ends.py" in stacks, stacks
                page = tmp_path / "report.html"
                asked.ask("report", "--output", str(page))
                assert f"rank {CULPRIT}" in page.read_text()
                time.sleep(_ASKED_EVERY)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not asked.culprits(), _OVER_SECONDS, "somebody is still named")
    lines = [_strict(line) for line in asked.watched.read_text().splitlines()]
    assert len(lines) > _STOPPED_SECONDS / 10
    assert {rank for line in lines for _, rank in _named(line)} == {str(CULPRIT)}
