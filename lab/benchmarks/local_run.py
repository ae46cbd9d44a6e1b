"""What ``laggard run --local`` takes beside a job of eight ranks, and from its ranks, beside ``laggard run`` alone.

    python -m lab.benchmarks.local_run --seconds 80

Processor time is that of the processes, between the start-up and the end, as a share of one processor. Ranks mark their
steps by hand and sleep in them, so what they take is telemetry; the two ways take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

RANKS = 8
#: Start of the ranks and of the servers, and what is rendered and loaded then.
_SETTLE_SECONDS = 30.0
_RANK = """
import sys, time
import laggard
laggard.instrument()
phases = {"data": .01, "forward": .02, "backward": .03, "communication": .03, "optimizer": .005}
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    with laggard.step():
        for phase, seconds in phases.items():
            with laggard.phase(phase):
                time.sleep(seconds)
"""
_JOB = f"""
import os, subprocess, sys
def start(rank):
    own = {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "{RANKS}", "LOCAL_WORLD_SIZE": "{RANKS}"}}
    return subprocess.Popen([sys.executable, "rank.py", sys.argv[1]], env={{**os.environ, **own}})
sys.exit(max(rank.wait() for rank in [start(rank) for rank in range({RANKS})]))
"""


def part(process: psutil.Process) -> str:
    """Return which part of the whole a process is; empty for none."""
    words = process.cmdline()
    if "rank.py" in words:
        return "ranks"
    if words and Path(words[0]).name.startswith("prometheus"):
        return "prometheus"
    if "laggard_exporter.main" in words:
        return "exporter"
    return "monitor" if any(part(child) == "prometheus" for child in process.children()) else ""


def used(laggard: psutil.Process) -> dict[str, float]:
    """Return the seconds of processor time that each part has taken."""
    found: defaultdict[str, float] = defaultdict(float)
    for process in laggard.children(recursive=True):
        if name := part(process):
            found[name] += sum(process.cpu_times()[:2])
    return found


def measure(*flags: str, seconds: float) -> dict[str, float]:
    """Run the job and return the share of one processor that each part takes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rank.py").write_text(_RANK)
        Path(folder, "job.py").write_text(_JOB)
        length = str(_SETTLE_SECONDS + seconds + 10)
        command = [sys.executable, "-m", "laggard_cli.main", "run", *flags, sys.executable, "job.py", length]
        environment = {**os.environ, "LAGGARD_RUN": "local-run"}
        if not flags:
            environment["LAGGARD_STATE_DIR"] = folder
        with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
            laggard = psutil.Process(process.pid)
            time.sleep(_SETTLE_SECONDS)
            before, began = used(laggard), time.monotonic()
            time.sleep(seconds)
            after, ended = used(laggard), time.monotonic()
    return {name: (after[name] - before.get(name, 0.0)) / (ended - began) for name in after}


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.local_run")
    parser.add_argument("--seconds", type=float, default=80.0, help="of each measurement (default %(default)g)")
    parser.add_argument("--rounds", type=int, default=2, help="(default %(default)d)")
    options = parser.parse_args()
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        for name, share in measure("--local", "--quiet", seconds=options.seconds).items():
            found[f"--local: {name}"].append(share)
        for name, share in measure(seconds=options.seconds).items():
            found[f"laggard run: {name}"].append(share)
    for name, shares in found.items():
        print(f"{name:24} {statistics.median(shares):7.2%} of one processor")
    beside = sum(
        statistics.median(shares) for name, shares in found.items() if "--local" in name and "ranks" not in name
    )
    print(f"{'beside the job, in all':24} {beside:7.2%} of one processor")


if __name__ == "__main__":
    main()
