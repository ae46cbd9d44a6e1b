"""A straggler in each place of loops that real projects have: named live, by the real rules, and nobody else is.

Each job runs once with real servers; a file makes one of its ranks slow, in one place after the other.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import Self

from laggard_cli.demo.servers import Servers, free_ports
from laggard_cli.diagnose.gather import diagnose, firing
from laggard_cli.diagnose.model import Verdict
from laggard_cli.prometheus import Prometheus
from tests.field.live.jobs import CONTROL, JOBS, PHASES, Job
from tests.field.live.launch import BINARIES, environment

pytestmark = pytest.mark.field

PROGRAM = Path(__file__).parent / "live" / "trainers.py"
#: Until the rules compare the ranks, and until nothing of the start is left in their means.
_START_SECONDS = 240
_CALM_SECONDS = 8.0
#: A healthy job is watched for so long, which is several evaluations.
_HEALTHY_SECONDS = 25.0
_DETECTION_SECONDS = 60.0
#: A verdict must stand for so long, over evaluations and checkpoints.
_HOLD_SECONDS = 12.0


class Live:
    """A job that runs, and the servers that watch it."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self._folder = folder
        self._control = folder / "control"
        self.slow("")

    def __enter__(self) -> Self:
        self._servers = Servers(self._folder, self.job.loop, self.job.ranks)
        self._servers.__enter__()
        self._prometheus = Prometheus(self._servers.addresses["prometheus"])
        variables = {
            **environment(self._servers),
            "HF_HUB_OFFLINE": "1",
            CONTROL: str(self._control),
            # With more ranks than processors a hook seems to take long whenever it is put aside.
            "LAGGARD_BUDGET": "0",
        }
        laggard = [BINARIES / "laggard", "run", "--run", self.job.loop]
        port = free_ports(1)[0]
        torchrun = ["torchrun", f"--master-port={port}", "--nproc-per-node", str(self.job.ranks)]
        with (self._folder / "training.log").open("wb") as log:
            self._training = subprocess.Popen(
                [*map(str, laggard), *torchrun, str(PROGRAM), self.job.loop],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        # The launcher ends its ranks.
        self._training.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._training.wait(40)
        self._training.kill()
        self._training.wait()
        self._prometheus.close()
        self._servers.__exit__()

    def slow(self, place: str, rank: int = 0) -> None:
        """Make a rank slow in a place, or nowhere."""
        content = {"place": place, "rank": rank, "seconds": self.job.extra} if place else {}
        new = self._control.with_suffix(".new")
        new.write_text(json.dumps(content))
        new.replace(self._control)

    def watch(self, seconds: float) -> Iterator[tuple[float, list[Verdict]]]:
        """Yield the time since now and what fires, twice a second."""
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            if self._training.poll() is not None:
                log = (self._folder / "training.log").read_text(errors="replace").splitlines()[-30:]
                pytest.fail("the job ended:\n" + "\n".join(log))
            self._servers.check()
            yield elapsed, firing(self._prometheus)
            time.sleep(0.5)

    def calm(self) -> None:
        """Wait until the ranks are compared and nothing has fired for a while."""
        since, verdicts = 0.0, []
        for elapsed, verdicts in self.watch(_START_SECONDS):
            compared = [found for found in diagnose(self._prometheus, None) if len(found.ranks) == self.job.ranks]
            if verdicts or not compared:
                since = elapsed
            elif elapsed - since > _CALM_SECONDS:
                return
        pytest.fail(f"the job is not calm after {_START_SECONDS} s: {[_key(verdict) for verdict in verdicts]}")


def _key(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.alert, verdict.rank, verdict.phase


@pytest.fixture(scope="module", params=JOBS, ids=lambda job: job.loop)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A job that is healthy."""
    job: Job = request.param
    if importlib.util.find_spec(job.package) is None:
        pytest.skip(f"{job.package} is not installed: make field")
    with Live(job, tmp_path_factory.mktemp(job.loop)) as running:
        yield running


def test_nobody_is_named_in_a_healthy_job(live: Live) -> None:
    """Evaluations, checkpoints, accumulation and several loaders bring no alert about."""
    live.calm()
    seen = {_key(verdict) for _, verdicts in live.watch(_HEALTHY_SECONDS) for verdict in verdicts}
    assert seen == set()


@pytest.mark.parametrize("place", PHASES)
def test_a_straggler_is_named_with_its_phase(live: Live, place: str) -> None:
    """Every verdict has the right rank and phase, and it stands over evaluations and checkpoints."""
    if place not in live.job.places:
        pytest.skip("no rank of this job has that")
    live.calm()
    rank = live.job.culprits[live.job.places.index(place) % 2]
    expected = ("TrainingStraggler", str(rank), PHASES[place])
    seen: set[tuple[str, str, str]] = set()
    since = None
    live.slow(place, rank)
    try:
        for elapsed, verdicts in live.watch(_DETECTION_SECONDS + _HOLD_SECONDS):
            now = {_key(verdict) for verdict in verdicts}
            seen |= now
            # While the window holds the beginning of the fault, steps are uneven and the rules may abstain again.
            if expected not in now:
                since = None
            elif since is None:
                since = elapsed
            if (elapsed > _DETECTION_SECONDS) if since is None else (elapsed - since > _HOLD_SECONDS):
                break
    finally:
        live.slow("")
    assert since is not None, f"the straggler is not named for good in {_DETECTION_SECONDS:.0f} s: {seen}"
    assert {key for key in seen if key[0] == "TrainingStraggler"} == {expected}
