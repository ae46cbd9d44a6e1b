"""All measurements in one run, and the documents that state them.

    python -m benchmarks [--quick] [--rounds N]      writes docs/benchmarks.json, and what is stated
    python -m benchmarks --only exporters ddp        these figures alone; keeps the others

Whatever is compared runs in turns: stretch by stretch in processes of its own, which all have begun, or in one process.
What is stated is the median of the differences to the bare loop beside it; how often a peer adds what laggard adds, by
the greater of the two figures that there are of laggard, the second with its error.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import pages

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
#: Of a toy model, whose every step shows what is added to it.
MILLISECONDS = 0.8
#: Steps of a turn, and of what laggard does by itself at the end.
TURN, ALONE = 250, 2000
VARIANTS = ("bare", "laggard", "traceml", "torchtel", "inline")
STYLES = ("eager", "compiled", "ddp", "accumulation")
#: Packages of the peers, whose versions are stated.
PEERS = ("traceml-ai", "torchtel")


def run(script: str, *arguments: object, hot_path: str = "compiled", timeout: float = 600) -> dict[str, Any]:
    """Run one measurement in a process of its own and return what it prints."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    environment = {**os.environ, "LAGGARD_HOT_PATH": hot_path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


class Loop:
    """A process of loop.py, which makes steps when it is asked to."""

    def __init__(self, *arguments: object) -> None:
        self._command = [sys.executable, str(HERE / "loop.py"), *map(str, arguments)]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def end(self) -> None:
        """Have it end by itself."""
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()

    def wait(self) -> None:
        """Wait until it has warmed up."""
        self._answer()

    def steps(self, number: int) -> dict[str, float]:
        """Make steps; return the microseconds of one, and what the variant says of itself."""
        assert self._process.stdin
        self._process.stdin.write(f"{number}\n")
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        # A peer may print, too.
        for line in self._process.stdout:
            if line.startswith(("ready", '{"step_us"')):
                return line
        sys.exit(f"{' '.join(self._command)} failed")


def compare(style: str, turns: int, rounds: int) -> dict[str, Any]:
    """Return the added microseconds of each variant, and what it says of itself.

    Args:
        style: how the loop trains.
        turns: how often each variant makes a stretch of steps in a round.
        rounds: how often all processes are started.
    """
    steps = TURN * turns + ALONE
    taken: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    added: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    own: list[dict[str, float]] = []
    for number in range(rounds):
        with contextlib.ExitStack() as after:
            loops = {name: Loop(name, style, MILLISECONDS, steps) for name in VARIANTS}
            for loop in loops.values():
                after.callback(loop.end)
            for loop in loops.values():
                loop.wait()
            medians: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
            for turn in range(turns):
                # Who comes first changes, so that a trend cancels.
                first = turn % len(VARIANTS)
                for variant in (*VARIANTS[first:], *VARIANTS[:first]):
                    medians[variant].append(loops[variant].steps(TURN)["step_us"])
            own.append(loops["laggard"].steps(ALONE))
        for variant, values in medians.items():
            taken[variant] += values
            differences = [value - bare for value, bare in zip(values, medians["bare"], strict=True)]
            added[variant].append(statistics.median(differences))
        print(f"{style}, round {number + 1} of {rounds}", file=sys.stderr)
    compared: dict[str, Any] = {
        variant: {
            "step_us": round(statistics.median(taken[variant]), 1),
            "added_us": round(statistics.median(values), 1),
            "added_us_rounds": [round(value, 1) for value in values],
        }
        for variant, values in added.items()
    }
    compared["laggard"]["hot_path"] = os.environ.get("LAGGARD_HOT_PATH", "compiled")
    for name in ("self_time_us", "drain_us"):
        compared["laggard"][name] = round(statistics.median(each[name] for each in own), 1)
    return compared


def machine() -> dict[str, Any]:
    """Describe where this was measured."""
    text = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line), "unknown")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "opentelemetry_sdk": metadata.version("opentelemetry-sdk"),
        "peers": {name: metadata.version(name) for name in PEERS},
        "load_before": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    """Measure everything, write it down."""
    parser = argparse.ArgumentParser(description="Measure what laggard costs, beside its peers.")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything runs")
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often everything runs in turns (default %(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=MEASURED, help="make these figures alone; the others stay as they are"
    )
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only:
        found = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
    # Whoever reads the page learns which figures are not of the whole run.
    found["apart"] = sorted({*found.get("apart", []), *(options.only or [])})
    for name in options.only or MEASURED:
        found[name] = MEASURED[name](options)
    write(found, quick=options.quick)


def in_turns(style: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """Return what measures a style of training."""
    return lambda options: compare(style, *((2, 1) if options.quick else (12, options.rounds)))


def beside(options: argparse.Namespace) -> dict[str, Any]:
    """Compare laggard and OpenTelemetry inline in turns of one process, in each style."""
    # A step of these takes four times as long.
    turns = {style: 60 if style in ("ddp", "accumulation") else 150 for style in STYLES}
    return {style: run("beside.py", style, MILLISECONDS, 3 if options.quick else turns[style]) for style in STYLES}


def exporters(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the node exporter and its peers."""
    return run("exporters.py", 50) if options.quick else run("exporters.py", 150, "--days")


def both(script: str, *arguments: object) -> dict[str, Any]:
    """Measure with the compiled hot path, and as ``python`` with the one in Python."""
    return {**run(script, *arguments), "python": run(script, *arguments, hot_path="python")}


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Train for as long as leaks take to show, both hot paths at once: each needs one processor."""
    minutes = 0.2 if options.quick else 20
    measure = functools.partial(run, "soak.py", "--minutes", minutes, timeout=minutes * 60 + 600)
    with ThreadPoolExecutor(2) as threads:
        compiled, python = (threads.submit(measure, hot_path=hot_path) for hot_path in ("compiled", "python"))
        return {**compiled.result(), "python": python.result()}


#: Every figure by its name in the file, and what measures it.
MEASURED: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "machine": lambda _: machine(),
    "hot_path": lambda options: both("hot_path.py", 2 if options.quick else 25),
    **{style: in_turns(style) for style in STYLES},
    "beside": beside,
    "long": lambda options: both("turns.py", 30, 3 if options.quick else 400),
    "process": lambda options: run("process.py", 200 if options.quick else 2000),
    "exporters": exporters,
    "soak": soak,
}


def write(found: dict[str, Any], *, quick: bool) -> None:
    """Write figures and documents, or print the page of a quick round."""
    if quick:
        print(pages.page(found))
        return
    (DOCS / "benchmarks.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    pages.write(DOCS.parent, found)


if __name__ == "__main__":
    main()
