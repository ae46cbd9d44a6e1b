"""Recordings of runs that differ as a test says, as JSON lines and in a Prometheus."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from laggard_cli.main import main
from laggard_cli.ways import direct
from tests.rules.engine import free_address
from tests.support.waiting import wait_until

#: Milliseconds of each phase of a step.
WORK = {"data": 10, "forward": 50, "backward": 100, "optimizer": 10}


def lines_of(rank: int, steps: int, slow: float = 1.0, noise: float = 0.02, seed: int = 1, **fields: Any) -> list[str]:
    """Return the steps of a rank; ``slow`` stretches the backward pass, the first three steps are warm-up."""
    chance = random.Random(f"{seed}-{rank}")
    lines: list[str] = []
    for step in range(steps):
        phases = {name: round(1e6 * length * chance.gauss(1, noise)) for name, length in WORK.items()}
        phases["backward"] = round(phases["backward"] * slow * (3 if step < 3 else 1))
        if step % 40 == 39:
            phases["checkpoint"] = 500_000_000
        line = {
            "run": "recorded",
            "rank": rank,
            "step": step,
            "started_unix_ns": 1_700_000_000_000_000_000 + step * 200_000_000,
            "duration_ns": sum(phases.values()),
            "excluded": "warmup" if step < 3 else None,
            "phases_ns": phases,
            **fields,
        }
        lines.append(json.dumps(line))
    return lines


def write_run(folder: Path, steps: int = 200, ranks: int = 2, memory: int = 1 << 30, **how: Any) -> Path:
    """Write a recording of so many ranks; return its folder."""
    folder.mkdir()
    for rank in range(ranks):
        lines = lines_of(rank, steps, world_size=ranks, memory_peak_bytes={"device_peak": memory}, **how)
        (folder / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


#: When the runs in Prometheus began, and how long they lasted, in seconds; their scrapes are 15 s apart.
BEGIN, LENGTH, SCRAPE = 1_700_000_000, 3600, 15


def openmetrics(slowed: dict[str, float], ranks: int = 2) -> str:
    """Return what the ranks of runs exposed over an hour; the value stretches the forward pass of a run."""
    samples: dict[str, list[str]] = {}

    def add(name: str, labels: str, value: float, moment: int) -> None:
        samples.setdefault(name, []).append(f"training_{name}{{{labels}}} {value:.9g} {moment}")

    for run, slow in slowed.items():
        chance = random.Random(run)
        for rank in range(ranks):
            totals: dict[str, float] = {"data": 0.0, "forward": 0.0, "backward": 0.0}
            steps = 0
            for moment in range(BEGIN, BEGIN + LENGTH, SCRAPE):
                own = f'training_run="{run}",training_rank="{rank}"'
                add("steps_total", own, steps, moment)
                add("samples_total", own, 32 * steps, moment)
                add("step_duration_seconds_sum", own, sum(totals.values()), moment)
                add("step_duration_seconds_count", own, steps, moment)
                for phase, seconds in totals.items():
                    add("phase_duration_seconds_sum", f'{own},training_phase="{phase}"', seconds, moment)
                # A run that grows has ranks that it had not before.
                size = ranks + (run == "grows" and moment > BEGIN + LENGTH / 2)
                add("ranks_expected", own, size, moment)
                add("memory_usage_bytes", f'{own},training_memory_kind="host_rss"', 2e9 + 1e6 * rank, moment)
                lengths = {"data": 0.02, "forward": 0.05 * slow, "backward": 0.1}
                noisy = {phase: length * chance.gauss(1, 0.03) for phase, length in lengths.items()}
                done = round(SCRAPE / sum(noisy.values()))
                steps += done
                for phase, length in noisy.items():
                    totals[phase] += done * length
    types = {name: "counter" if name.endswith("_total") else "gauge" for name in samples}
    blocks = (
        f"# TYPE training_{name.removesuffix('_total')} {types[name]}\n" + "\n".join(found) + "\n"
        for name, found in samples.items()
    )
    return "".join(blocks) + "# EOF\n"


@contextlib.contextmanager
def prometheus_with(folder: Path, text: str) -> Iterator[str]:
    """Run a Prometheus that has these series; yield its URL."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    (folder / "runs.om").write_text(text)
    (folder / "prometheus.yml").write_text("{}")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "runs.om", folder / "data"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    address = free_address()
    server = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return direct().get(f"http://{address}/-/ready").is_success
            time.sleep(0.05)
            return False

        wait_until(ready, 30)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(10)


def outcomes_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``--json`` printed."""
    return json.loads(capsys.readouterr().out)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run the gate, which must fail with code 2 and one line; return the line."""
    assert main(["gate", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("laggard gate: error: ")
