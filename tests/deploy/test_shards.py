"""Two Prometheus servers as deploy/prometheus/sharded.yml has them say together what one says."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from laggard_cli.main import main
from laggard_cli.rules import render
from laggard_cli.ways import direct
from tests.collector.support import ROOT, alertmanager, missing, processes
from tests.rules.engine import RUN, Play, Prometheus, free_address, serving
from tests.support.waiting import until

FILE = ROOT / "deploy" / "prometheus" / "sharded.yml"
#: As the head of the file says; every other shard is made of the first.
_TO_SECOND = "s/;0$/;1/; s/shard-0/shard-1/"
#: So long may what takes a quarter of a minute take on a busy machine.
SECONDS = 120
Labels = frozenset[tuple[str, str]]


def shard_of(run: str) -> int:
    """Return the shard of a run, by Prometheus' hashmod: the last eight bytes of the MD5."""
    return int.from_bytes(hashlib.md5(run.encode(), usedforsecurity=False).digest()[8:], "big") % 2


#: A run of each shard, with the rank that is slow in it.
RUNS = {
    next(name for name in map("run-{}".format, range(100)) if shard_of(name) == shard): rank
    for shard, rank in ((0, "2"), (1, "1"))
}


class Plays(Play):
    """Both runs on one page, with lost GPUs: one of each run's rank 3, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self._plays = {run: Play() for run in RUNS}

    def slow_down(self) -> None:
        """Let a rank of each run be slow in data."""
        for run, rank in RUNS.items():
            self._plays[run].data[int(rank)] += 0.05

    def exposition(self) -> str:
        """Return all series."""
        pages = [play.exposition().replace(f'"{RUN}"', f'"{run}"') for run, play in self._plays.items()]
        lines = 'gpu_up{uuid="GPU-free"} 0\n'
        for run in RUNS:
            lines += f'gpu_up{{uuid="GPU-{run}"}} 0\n'
            lines += f'gpu_workload_info{{uuid="GPU-{run}",training_run="{run}",training_rank="3"}} 1\n'
        return "".join(pages) + lines


def sharded(number: int) -> str:
    """Return the configuration of a shard."""
    text = FILE.read_text(encoding="utf-8")
    assert f"sed '{_TO_SECOND}' sharded.yml" in text
    if number:
        text = subprocess.run(["sed", _TO_SECOND, FILE], capture_output=True, text=True, check=True).stdout
    return text


@contextlib.contextmanager
def server(text: str, target: str, receiver: str, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus by a configuration, with other addresses and the fast profile."""
    (folder / "rules").mkdir(parents=True)
    for name, rules in render("fast").items():
        # Nobody wants to wait for what is recorded more seldom.
        often = re.sub(r"^( +interval): \d+s$", r"\1: 1s", rules, flags=re.MULTILINE)
        (folder / "rules" / name).write_text(often, encoding="utf-8")
    for old, new in (
        ("../../rules", "rules"),
        ("localhost:9495", target),
        ("localhost:9093", receiver),
        (": 15s", ": 1s"),
        (": 10s", ": 1s"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    address = free_address()
    with processes(folder) as started:
        arguments = [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}", "--log.level=warn"]
        # The first alerts come before the server has found Alertmanager.
        arguments.append("--rules.alert.resend-delay=5s")
        started.start("prometheus", ["prometheus", f"--config.file={folder / 'prometheus.yml'}", *arguments])
        asked = Prometheus(address)
        started.wait("prometheus", f"http://{address}/-/ready")
        try:
            yield asked
        finally:
            asked.close()


def labels(alerts: list[dict[str, str]]) -> set[Labels]:
    """Return the alerts by their labels."""
    return {frozenset(alert.items()) for alert in alerts}


def told(receiver: str) -> tuple[set[Labels], set[str]]:
    """Return the verdicts that came to Alertmanager, and which servers' watchdogs did."""
    try:
        found = [alert["labels"] for alert in direct().get(f"http://{receiver}/api/v2/alerts").json()]
    except httpx.TransportError:
        return set(), set()
    watchdogs = {alert.get("prometheus", "") for alert in found if alert["alertname"] == "LaggardWatchdog"}
    return labels([alert for alert in found if alert["alertname"] != "LaggardWatchdog"]), watchdogs


def found_all(alerts: list[dict[str, str]]) -> bool:
    """Say whether these are the slow rank and the lost GPU of each run, with its host, and the GPU that is free."""
    slow = {each["training_run"]: each["training_rank"] for each in alerts if each["alertname"] == "TrainingStraggler"}
    lost = {(each["uuid"], each.get("host_name")) for each in alerts if each["alertname"] == "TrainingGpuLost"}
    gpus = {("GPU-free", None), *((f"GPU-{run}", "node-1") for run in RUNS)}
    return (slow, lost, len(alerts)) == (RUNS, gpus, 5)


def test_two_shards_say_what_one_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run is judged by one shard; what comes to Alertmanager is the same as from one server, each alert once."""
    if shutil.which("prometheus") is None:
        missing("prometheus is missing: scripts/tools/fetch_servers.sh")
    play = Plays()
    receiver = free_address()
    with contextlib.ExitStack() as after:
        started = after.enter_context(processes(tmp_path))
        started.start("alertmanager", alertmanager(tmp_path, receiver))
        started.wait("alertmanager", f"http://{receiver}/-/ready")
        target = after.enter_context(serving(play))
        whole = FILE.with_name("prometheus.yml").read_text(encoding="utf-8")
        one = after.enter_context(server(whole, target, free_address(), tmp_path / "one"))
        shards = [
            after.enter_context(server(sharded(number), target, receiver, tmp_path / f"shard-{number}"))
            for number in range(2)
        ]
        play.slow_down()
        # Two slow ranks, and three lost GPUs, by one server and by both shards.
        until(lambda: found_all(one.firing()), "not all is found", SECONDS)
        until(
            lambda: told(receiver) == (labels(one.firing()), {"shard-0", "shard-1"}),
            "the shards say something else",
            SECONDS,
        )
        assert found_all(one.firing())
        for number, (run, rank) in enumerate(RUNS.items()):
            address = shards[number].address
            capsys.readouterr()
            assert main(["diagnose", "--prometheus", address, "--run", run]) == 0
            assert f"rank {rank}, phase data" in capsys.readouterr().out
            answer = direct().get(f"{address}/api/v1/query", params={"query": "training_steps_total"}).json()
            found = [each["metric"] for each in answer["data"]["result"]]
            assert {each["training_run"] for each in found} == {run}
            # Nothing of what decides the shard is stored.
            assert not any(name.startswith("__tmp") for each in found for name in each)
