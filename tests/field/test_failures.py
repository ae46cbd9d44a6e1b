"""A job that dies as a whole, in each way that real jobs do: the rank that ended first is named, and how it ended."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard_cli.demo.servers import Servers, free_ports
from laggard_cli.diagnose.gather import diagnose, firing
from laggard_cli.prometheus import Prometheus
from tests.field.live.ends import CULPRIT
from tests.field.live.launch import job
from tests.support.kernel import said
from tests.support.waiting import until, wait_until

PROGRAM = Path(__file__).parent / "live" / "ends.py"
#: From the end of the job to the alert.
_LIMIT_SECONDS = 60.0
_JOB_SECONDS = 90.0
#: By way to end: by what and with what the culprit did.
FAILURES = {
    "kill": ("unknown", said("SIGKILL")),
    "raise": ("exception", "ValueError"),
    "teardown": ("exception", "ValueError"),
    "exit": ("exit", "3"),
    "leave": ("unknown", said("exit code 7")),
    "segfault": ("unknown", said("SIGSEGV")),
    "abort": ("unknown", said("SIGABRT")),
    "spawn": ("exception", "ValueError"),
    "ray": ("exception", "ValueError"),
}
#: Run by `make test`; all by `make field`.
_QUICK = {"kill", "raise"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A node exporter, and Prometheus with the rules."""
    with Servers(tmp_path_factory.mktemp("failures"), "kill", 2) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(servers: Servers) -> Iterator[Prometheus]:
    """The server, to ask."""
    with contextlib.closing(Prometheus(servers.addresses["prometheus"])) as server:
        yield server


def _job(servers: Servers, how: str, *torchrun: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    if how == "ray":
        return job(servers, how, sys.executable, str(PROGRAM.with_name("ray_ends.py")), str(CULPRIT))
    port = str(free_ports(1)[0])
    launcher = ["torchrun", f"--master-port={port}", "--nproc-per-node=2", *torchrun]
    return job(servers, how, *([sys.executable] if how == "spawn" else launcher), str(PROGRAM), how, port)


def _failed(prometheus: Prometheus, run: str) -> list[str]:
    """Return the ranks that are named as those who ended first."""
    return [each.rank for each in firing(prometheus) if each.run == run and each.alert == "TrainingRunFailed"]


def _wait_for(prometheus: Prometheus, run: str, expected: list[str]) -> float:
    return wait_until(lambda: _failed(prometheus, run) == expected, _LIMIT_SECONDS, lambda: _failed(prometheus, run))


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in _QUICK else pytest.mark.field) for how in FAILURES]
)
def test_who_ended_first_is_named(servers: Servers, prometheus: Prometheus, how: str) -> None:
    """The alert names the rank, and the diagnosis says how it ended, when the alert is over too."""
    if how == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: make field")
    with _job(servers, how) as job:
        assert job.wait(_JOB_SECONDS)
    seconds = _wait_for(prometheus, how, [str(CULPRIT)])
    print(f"{how}: named after {seconds:.1f} s")
    failure = diagnose(prometheus, how)[0].failure
    assert failure is not None
    assert (failure.rank, failure.ended_by, failure.ended_with) == (str(CULPRIT), *FAILURES[how])
    assert failure.phase in {"forward", "backward", "other", "communication", "optimizer"}


@pytest.mark.field
def test_who_gives_up_waiting_is_not_named(servers: Servers, prometheus: Prometheus) -> None:
    """Of a run that stood still until a collective timed out, who hangs is named, and nobody who ended."""
    told: set[tuple[str, str]] = set()
    with _job(servers, "hang") as job:
        while job.poll() is None:
            told |= {(each.alert, each.rank) for each in firing(prometheus) if each.run == "hang"}
            time.sleep(0.2)
    _wait_for(prometheus, "hang", [""])
    told |= {(each.alert, each.rank) for each in firing(prometheus) if each.run == "hang"}
    assert {each for each in told if each[1]} == {("TrainingStalled", str(CULPRIT))}
    failure = diagnose(prometheus, "hang")[0].failure
    assert failure is not None
    assert (failure.rank, failure.ended_by, failure.ended_with) == ("", "exception", "RuntimeError")
    assert failure.ended_after == "stall"


@pytest.mark.field
def test_an_end_that_was_asked_for_is_no_failure(servers: Servers, prometheus: Prometheus) -> None:
    """SIGTERM to the launcher, as by scancel, and a clean end bring no alert about."""
    with _job(servers, "request") as job, _job(servers, "clean") as clean:
        assert clean.wait(_JOB_SECONDS) == 0
        job.send_signal(signal.SIGTERM)
        job.wait(60)
    for _ in range(40):
        assert _failed(prometheus, "request") == _failed(prometheus, "clean") == []
        time.sleep(0.25)
    known = [found for found in diagnose(prometheus, None) if found.run in {"request", "clean"}]
    assert [(found.failure, found.verdicts) for found in known] == [(None, ())] * len(known)
    until(lambda: {"request", "clean"}.isdisjoint(found.run for found in diagnose(prometheus, None)), "still known")


@pytest.mark.field
def test_a_run_that_begins_again_says_who_failed(servers: Servers, prometheus: Prometheus) -> None:
    """After a restart by the launcher the rank that failed is named, until the run ends cleanly."""
    with _job(servers, "restart", "--max-restarts=1") as job:
        told: set[str] = set()
        while job.poll() is None:
            told |= set(_failed(prometheus, "restart"))
            time.sleep(0.2)
    assert told == {str(CULPRIT)}
    assert job.returncode == 0
    _wait_for(prometheus, "restart", [])
