"""How often ``laggard gate`` is right on real training: runs of one small model, some of them 5 % slower.

python -m lab.evaluation.gate_real FOLDER --record 20 --ranks 1
python -m lab.evaluation.gate_real FOLDER

The first line trains, and adds recordings to the folder: equal runs, and by turns one with more work in forward or in
loading data, so much that a step takes 5 % longer on a machine that does nothing else. The second compares them: each
run with the next of its kind, as a job in continuous integration would, and each with all others.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from laggard_cli.gate.measured import Measured, joined
from laggard_cli.gate.steps import read_steps, step_files
from laggard_cli.gate.verdict import Outcome, judge

LIMIT = 0.05
#: What is slower in each run, by turns; the name of its folder ends with it.
KINDS = ("equal", "forward", "equal", "data")
#: So many recordings are compared with as many others.
GROUPS = (3, 5)
#: Units of work that every second step of the calibration has more.
_MORE = 60


def calibrate(folder: Path) -> int:
    """Return how many units of work are 5 % of a step: from a run of which every second step has more of them."""
    folder.mkdir(parents=True)
    _launch(folder, "alternating", _MORE, 1)
    found = measured(folder)
    forward = sorted(found.phases["forward"].tolist())
    half = len(forward) // 2
    unit = (statistics.median(forward[half:]) - statistics.median(forward[:half])) / _MORE
    usual = statistics.median(found.step.tolist()) - unit * _MORE / 2
    return max(1, round(LIMIT * usual / unit))


def _launch(folder: Path, kind: str, extra: int, ranks: int) -> None:
    command = [sys.executable, "-m", "lab.evaluation.gate_training", str(folder), kind, str(extra)]
    port = str(29500 + os.getpid() % 1000)
    processes = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                "LAGGARD_RUN": folder.name,
                "LAGGARD_STATE_DIR": str(folder / "state"),
                **({"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port} if ranks > 1 else {}),
            },
        )
        for rank in range(ranks)
    ]  # fmt: skip
    if any(process.wait(300) for process in processes):
        raise RuntimeError(f"training of {folder} failed")


def measured(folder: Path) -> Measured:
    """Return a recording."""
    return read_steps(str(folder), step_files(str(folder)))


def record(folder: Path, runs: int, ranks: int) -> None:
    """Add recordings to a folder."""
    known = folder / "extra"
    if not known.exists():
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(str(calibrate(folder / "calibration")))
    done = len(list(folder.glob("run-*")))
    for number in range(done, done + runs):
        kind = KINDS[number % len(KINDS)]
        path = folder / f"run-{number:03d}-{kind}"
        path.mkdir()
        _launch(path, kind, int(known.read_text()) if kind != "equal" else 0, ranks)
        step = statistics.median(measured(path).step.tolist())
        print(f"{path.name}: step {1e3 * step:.2f} ms, load {os.getloadavg()[0]:.1f}", flush=True)


def pairs(runs: list[Measured], others: list[Measured]) -> Iterator[tuple[Measured, Measured]]:
    """Yield each of the runs with each other one."""
    return ((one, two) for one, two in itertools.product(runs, others) if one is not two)


def groups(runs: list[Measured], others: list[Measured], size: int, every: int) -> Iterator[tuple[Measured, Measured]]:
    """Yield so many recordings that follow each other as one run, and so many of the others from between them."""
    for begin in range(min(len(runs), len(others)) - every * (size - 1)):
        chosen = slice(begin, begin + every * size, every)
        one, two = runs[chosen], others[chosen]
        if len(one) == len(two) == size:
            yield joined("baseline", one), joined("candidate", two)


def told(name: str, found: list[tuple[Measured, Measured]]) -> str:
    """Return a row of a table: what the gate said of pairs."""
    said = Counter(judge(one, two, LIMIT).outcome for one, two in found)
    shares = " | ".join(
        f"{100 * said[outcome] / len(found):.3g} %" for outcome in Outcome if outcome is not Outcome.TOLD
    )
    return f"| {name} | {len(found)} | {shares} |"


def main() -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description="How often laggard gate is right on real training.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", type=int, default=0, metavar="RUNS")
    parser.add_argument("--ranks", type=int, default=1)
    given = parser.parse_args()
    if given.record:
        record(given.folder, given.record, given.ranks)
        return 0
    paths = sorted(given.folder.glob("run-*"))
    runs = [(path.name.rpartition("-")[2], measured(path)) for path in paths]
    equal = [run for kind, run in runs if kind == "equal"]
    slow = [run for kind, run in runs if kind != "equal"]
    after = [(one, two) for (first, one), (then, two) in itertools.pairwise(runs) if first == "equal" != then]
    print("| pairs | number | pass | fail | not decided |\n|---|---:|---:|---:|---:|")
    print(told("equal, one after the other", list(itertools.pairwise(equal))))
    print(told("equal, any two", list(pairs(equal, equal))))
    print(told("slower, one after the other", after))
    print(told("slower, any two", list(pairs(equal, slow))))
    for size in GROUPS:
        print(told(f"equal, {size} recordings each, by turns", list(groups(equal, equal[1:], size, 2))))
        print(told(f"slower, {size} recordings each, by turns", list(groups(equal, slow, size, 1))))
    medians = [statistics.median(run.step.tolist()) for run in equal]
    apart = statistics.stdev(medians) / statistics.fmean(medians)
    print(f"\nEqual runs differ by {100 * apart:.1f} % (standard deviation).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
