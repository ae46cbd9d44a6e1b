"""The instructions that laggard adds to a step on the training thread, counted: the same number on a busy machine.

    python -m lab.benchmarks.instructions [--beside CHECKOUT] [STYLE...]

A step's time differs from one process to the next by more than two versions of laggard do, since their memory lies
elsewhere. Its instructions do not, without garbage collection, which comes when it comes and takes as long as a step.
Valgrind's callgrind, which must be on the PATH, counts those of each thread when the loop has warmed up, at a fiftieth
of the speed. What caches do is not in the number: see the processor time that ``python -m lab.benchmarks`` states.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.benchmarks.children import Child
from lab.benchmarks.loop import NO_GARBAGE, STYLES

HERE = Path(__file__).resolve().parent
MILLISECONDS = 0.8
#: Steps that are counted, and those for which a loop has batches.
STEPS, MOST = 100, 150


def count(style: str, variant: str, checkout: Path) -> float:
    """Return the instructions of a step on the training thread, in the loop of a style with a variant's hooks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        valgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes", "--instr-atstart=no"]
        valgrind += [f"--callgrind-out-file={folder / 'count'}", f"--log-file={folder / 'log'}"]
        # On a machine that is so slow, telemetry would give up what exceeds its budget.
        environment = {
            "PYTHONPATH": str(checkout / "instrumentation"), "PYTHONHASHSEED": "0", "LAGGARD_BUDGET": "100",
            NO_GARBAGE: "1",
        }  # fmt: skip
        loop = Child("loop.py", variant, style, MILLISECONDS, MOST, environment=environment, under=valgrind)
        with loop as child:
            child.wait()
            _control(child, "--instr=on")
            child.ask(STEPS)
            _control(child, "--instr=off")
            _control(child, "--dump")
        # The first thread is the one that trains.
        found = re.search(r"^totals: (\d+)", (folder / "count.1-01").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / STEPS


def _control(child: Child, order: str) -> None:
    subprocess.run(["callgrind_control", order, str(child.pid)], check=True, capture_output=True)


def row(style: str, checkouts: Sequence[Path]) -> str:
    """Return the row of a style: the bare step, and what each checkout's laggard adds to it."""
    asked = [("bare", checkouts[0]), *(("laggard", checkout) for checkout in checkouts)]
    with ThreadPoolExecutor(2) as threads:
        bare, *steps = threads.map(lambda variant: count(style, *variant), asked)
    cells = [f"{bare:,.0f}", *(f"{step - bare:+,.0f} ({step / bare - 1:+.2%})" for step in steps)]
    return " | ".join((f"| {style}", *cells, f"{steps[0] / steps[-1]:.4f} |" if steps[1:] else "|"))


def main() -> None:
    """Count in the loops that were asked for."""
    parser = argparse.ArgumentParser(description="Count the instructions that laggard adds to a step.")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="count those of another checkout, too")
    parser.add_argument("styles", nargs="*", choices=[*STYLES, []], metavar="STYLE", help=f"of {', '.join(STYLES)}")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not on the PATH; install your system's package of that name")
    other = [] if options.beside is None else [options.beside.resolve()]
    print("| instructions | bare step | this version |" + (" the other | ratio of steps |" if other else ""))
    print("|---|---|---|" + ("---|---|" if other else ""))
    for style in options.styles or STYLES:
        print(row(style, [HERE.parents[1], *other]), flush=True)


if __name__ == "__main__":
    main()
