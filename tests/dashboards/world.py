"""Simulated runs, each with a fault, and all that the shipped rules record of them, for a Prometheus to serve."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from dashboards.queries import CHOSEN, PANELS, concrete
from lab.evaluation import engine
from lab.evaluation.draw import Draw
from lab.evaluation.model.exposition import incarnations
from lab.evaluation.model.job import Job
from lab.evaluation.model.target import EPOCH
from lab.evaluation.scenarios import SCENARIOS
from tests.dashboards.left_out import left_out
from tests.rules.engine import free_address
from tests.rules.pack import selectors
from tests.support.cases import EVERY_CASE

#: What takes hours of simulated time: half of the cost of all, for one panel each.
LONG = {"slower_than_before": "laggard-run: Against the past", "slow_epochs": "laggard-data: Start of an epoch"}
#: What is wrong with the runs, one each.
FAULTS = (
    "slow_backward",
    "hang_in_data",
    "leaking",
    "hot",
    "numbers_jump",
    "input_bound",
    "bursts",
    "restarted",
    "gpu_lost",
    "memory_short",
    "healthy",
    "slow_stage",
    "unmeasured",
    *(LONG if EVERY_CASE else ()),
)
RANKS = 8
#: Seconds between two points of a plot.
STEP = 15
SEED = 1


@dataclass(frozen=True)
class World:
    """A server with the runs, and when each of them was last seen."""

    client: httpx.Client
    ends: Mapping[str, float]
    _chosen: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    @property
    def address(self) -> str:
        """Where the server is."""
        return str(self.client.base_url.copy_with(path="/")).rstrip("/")

    def times(self, run: str) -> list[float]:
        """Return the times of a range query over the last hour of a run."""
        end = self.ends[run]
        start = max(EPOCH, end - 3600)
        return [start + STEP * number for number in range(int((end - start) / STEP) + 1)]

    def answers(self, target: Mapping[str, Any], run: str, step: float = STEP) -> list[dict[str, Any]]:
        """Return the series of a panel's query, as Grafana would ask at the end of a run's last hour.

        Args:
            target: the query as it stands in a panel.
            run: the run that is chosen.
            step: seconds between two points.

        Raises:
            AssertionError: Prometheus refuses the query.
        """
        start, *_, end = self.times(run)
        chosen = {name: self.chosen(name, run) for name in CHOSEN if f"${name}" in target["expr"]}
        query = concrete(target["expr"], training_run=run, __range=f"{end - start:.0f}s", **chosen)
        if target.get("instant"):
            answer = self.client.get("/query", params={"query": query, "time": end})
        else:
            answer = self.client.get("/query_range", params={"query": query, "start": start, "end": end, "step": step})
        return _found(query, answer)

    def chosen(self, name: str, run: str) -> str:
        """Return what Grafana puts in a variable's place: each value that its query finds at the end of a run."""
        if (name, run) not in self._chosen:
            query, label = CHOSEN[name]
            query = concrete(query, training_run=run)
            answer = self.client.get("/query", params={"query": query, "time": self.times(run)[-1]})
            values = dict.fromkeys(each["metric"][label] for each in _found(query, answer))
            self._chosen[name, run] = f"({'|'.join(values)})"
        return self._chosen[name, run]


def _found(query: str, answer: httpx.Response) -> list[dict[str, Any]]:
    found = answer.json()
    assert found["status"] == "success", f"{query}: {found['error']}"
    return found["data"]["result"]


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """Play the runs, and serve what was recorded."""
    jobs = [SCENARIOS[name].make(Draw(SEED, name, RANKS)).job for name in FAULTS]
    _play(jobs, folder / "blocks")
    with serve(folder) as client:
        yield World(client, {job.run: float(round(EPOCH + job.horizon)) for job in jobs})


@contextlib.contextmanager
def serve(folder: Path, timeout: float = 30) -> Iterator[httpx.Client]:
    """Serve the blocks in a folder, and delete them afterwards; an answer may take so many seconds."""
    (folder / "empty.yml").touch()
    address = free_address()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'empty.yml'}",
            f"--storage.tsdb.path={folder / 'blocks'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
            "--log.level=error",
        ]
    )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", timeout=timeout) as client:
            _wait(client)
            yield client
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder / "blocks")


def _wait(client: httpx.Client) -> None:
    for _ in range(150):
        with contextlib.suppress(httpx.TransportError):
            if client.get("/status/buildinfo").is_success:
                return
        time.sleep(0.2)
    raise TimeoutError("Prometheus does not answer")


def _play(jobs: list[Job], blocks: Path) -> None:
    files = engine.rule_files()
    names = engine.read_by_rules(files) | read_by_panels()
    targets = [
        (target, min(target.end, job.horizon))
        for job in jobs
        for each in incarnations(job)
        for target in each.targets(names)
    ]
    longest = max(job.horizon for job in jobs)
    targets += [(target, min(target.end, longest)) for target in left_out([target for target, _ in targets])]
    result = engine.evaluate(targets, SEED, files=files, horizons={}, blocks=blocks)
    assert not result.failed


def read_by_panels() -> frozenset[str]:
    """Return the names of all series that panels and variables read."""
    queries = [target["expr"] for panel in PANELS for target in panel.targets]
    queries += [query for query, _ in CHOSEN.values()]
    return frozenset(selector.name for query in queries for selector in selectors(concrete(query)) if selector.name)
