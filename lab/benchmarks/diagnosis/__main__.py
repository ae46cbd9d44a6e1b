"""Who names what: the same faults in a real job, watched by laggard and by traceml-ai.

    python -m lab.benchmarks.diagnosis [--faults data hang] [--json FILE] [--document docs/comparison.md]

Each fault is played twice, one after the other: under laggard with its node exporter, a Prometheus and the rules of the
demo, then under ``traceml run``, whose summary at the end of the run is its verdict. Four minutes for each fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab.chaos.job import Job
from lab.printing import between
from lab.printing import table as printed
from laggard_cli.demo.servers import Servers
from laggard_cli.diagnose.gather import firing
from laggard_cli.prometheus import Prometheus

PROGRAM = Path(__file__).parent / "train.py"
RANKS, SLOW_RANK = 4, 2
STEPS = 1300
SECONDS = 110
#: What a summary may take after that.
PATIENCE = 60
FAULTS = {
    "none": "nothing",
    "data": "rank 2 slow in data loading",
    "forward": "rank 2 slow in forward",
    "backward": "rank 2 slow in backward",
    "optimizer": "rank 2 slow in the optimizer",
    "host": "rank 2 slow between forward and backward",
    "all-data": "all ranks wait for data",
    "imbalance": "a different rank slow in each step",
    "leak": "rank 2 leaks memory of the host",
    "hang": "rank 2 stands still",
}
#: Between these lines of a document stands the table.
BEGIN, END = "<!-- diagnosis: made by python -m lab.benchmarks.diagnosis --document -->", "<!-- end of diagnosis -->"


def laggard(fault: str, folder: Path) -> list[str]:
    """Return the verdicts of laggard's rules, the first one first, with the seconds since the job's start."""
    found: dict[str, str] = {}
    with Servers(folder, "diagnosis", RANKS + 1) as servers:
        ports = [servers.rank_ports[RANKS], servers.rank_ports[0]]
        flags = [fault, str(SLOW_RANK), str(STEPS)]
        with contextlib.closing(Prometheus(servers.addresses["prometheus"])) as prometheus:
            job = Job(
                folder / "job", "diagnosis", RANKS, ports, servers.state_directories, flags=flags, program=PROGRAM
            )
            begun = time.monotonic()
            with job:
                while time.monotonic() - begun < SECONDS and any(each.poll() is None for each in job.processes):
                    for verdict in firing(prometheus):
                        where = f" rank {verdict.rank}" if verdict.rank else ""
                        phase = f", {verdict.phase}" if verdict.phase else ""
                        text = f"{verdict.alert.removeprefix('Training')}{where}{phase}"
                        found.setdefault(text, f"{text} ({time.monotonic() - begun:.0f} s)")
                    time.sleep(0.5)
    return list(found.values())


def traceml(fault: str, folder: Path) -> list[str]:
    """Return the verdict of traceml-ai's summary, with the ranks that it names; nothing where it writes none."""
    command = ["traceml", "run", "--mode", "summary", "--nproc-per-node", str(RANKS)]
    command += [
        "--run-name",
        fault,
        "--logs-dir",
        str(folder),
        str(PROGRAM),
        "--args",
        fault,
        str(SLOW_RANK),
        str(STEPS),
    ]
    environment = {**os.environ, "TRACEML": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        process.wait(SECONDS + PATIENCE)
    except subprocess.TimeoutExpired:
        # As a person would who has waited for long enough.
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    summary = folder / fault / "final_summary.json"
    if not summary.exists():
        return []
    told: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
    diagnosis = told["primary_diagnosis"]
    ranks = told.get("step_time", {}).get("diagnosis", {}).get("ranks") if diagnosis["section"] == "step_time" else None
    where = f" rank {', '.join(map(str, ranks))}" if ranks and "STRAGGLER" in diagnosis["kind"] else ""
    return [f"{diagnosis['status']}{where}"]


def table(found: dict[str, dict[str, list[str]]]) -> str:
    """Return what each said as Markdown."""
    rows = [
        (FAULTS[fault], *("; ".join(each) or "-" for each in said.values()))
        for fault, said in sorted(found.items(), key=lambda each: list(FAULTS).index(each[0]))
    ]
    return printed(("what is wrong", "laggard", "traceml-ai"), rows, align="l")


def main() -> int:
    """Play the faults; return 0 whatever is said."""
    parser = argparse.ArgumentParser(prog="lab.benchmarks.diagnosis", description="Who names what.")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME")
    parser.add_argument("--add", type=Path, metavar="FILE", help="take other faults from the figures of before")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--document", type=Path, metavar="FILE", help="Markdown with a place for the table")
    given = parser.parse_args()
    if shutil.which("traceml") is None:
        print("benchmarks.diagnosis: traceml is not on PATH; pip install 'laggard[bench]'", file=sys.stderr)
        return 2
    found: dict[str, dict[str, list[str]]] = {}
    if given.add:
        found = json.loads(given.add.read_text(encoding="utf-8"))
    for fault in given.faults:
        with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
            found[fault] = {"laggard": laggard(fault, Path(ours)), "traceml": traceml(fault, Path(theirs))}
        print(f"{fault}: {found[fault]}", file=sys.stderr, flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = table(found)
    print(text)
    if given.document:
        old = given.document.read_text(encoding="utf-8")
        given.document.write_text(between(old, BEGIN, END, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
