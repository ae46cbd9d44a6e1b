"""All measurements in one run, and the documents that state them.

    python -m lab.benchmarks [--quick] [--rounds N]      writes docs/benchmarks.json, and what is stated
    python -m lab.benchmarks --only exporters ddp        these figures alone; keeps the others
    python -m lab.benchmarks --beside CHECKOUT           this version and another one; writes nothing

Each figure is written as soon as it is measured, so a run that is interrupted keeps what it has.

Whatever is compared runs in turns: stretch by stretch in processes of its own, which all have begun, or in one process.
Stated is the median of the differences to the bare loop beside it, in processor time of the training thread. How many
times as much a peer adds is by the greater of the two figures that there are of laggard, the second with its error.
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
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from lab.benchmarks import pages, versions
from lab.benchmarks.children import Child, Comparison

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
#: Of a toy model, whose every step shows what is added to it.
MILLISECONDS = 0.8
#: Of a step that is long beside what laggard adds.
LONG_MILLISECONDS = 30
#: Steps of a turn, short so that all variants have their turn while the machine stays the same.
TURN = 40
VARIANTS = ("bare", "laggard", "traceml", "torchtel", "inline")
STYLES = ("eager", "compiled", "ddp", "accumulation")
#: Packages of the peers, whose versions are stated.
PEERS = ("traceml-ai", "torchtel")


def run(script: str, *arguments: object, hot_path: str = "native", timeout: float = 600) -> dict[str, Any]:
    """Run one measurement in a process of its own and return what it prints."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    environment = {**os.environ, "LAGGARD_HOT_PATH": hot_path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(style: str, turns: int, rounds: int) -> dict[str, Any]:
    """Return the added microseconds of each variant, in processes of their own.

    Args:
        style: how the loop trains.
        turns: how often each variant makes a stretch of steps in a round.
        rounds: how often all processes are started.
    """
    taken: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    added: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        with contextlib.ExitStack() as stack:
            loops = {
                name: stack.enter_context(Child("loop.py", name, style, MILLISECONDS, TURN * turns))
                for name in VARIANTS
            }
            for loop in loops.values():
                loop.wait()
            medians: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
            for turn in range(turns):
                # Who comes first changes, so that a trend cancels.
                first = turn % len(VARIANTS)
                for variant in (*VARIANTS[first:], *VARIANTS[:first]):
                    medians[variant].append(loops[variant].ask(TURN)["step_us"])
        for variant, values in medians.items():
            taken[variant] += values
            pairs = list(zip(values, medians["bare"], strict=True))
            added[variant].append(
                (
                    statistics.median(value[0] - bare[0] for value, bare in pairs),
                    statistics.median(value[1] - bare[1] for value, bare in pairs),
                )
            )
        print(f"{style}, round {number + 1} of {rounds}", file=sys.stderr)
    compared: dict[str, Any] = {}
    for variant, values in added.items():
        processor, wall = zip(*values, strict=True)
        compared[variant] = {
            "step_us": round(statistics.median(step for step, _ in taken[variant]), 1),
            "wall_us": round(statistics.median(step for _, step in taken[variant]), 1),
            "added_us": round(statistics.median(processor), 1),
            "added_us_rounds": [round(value, 1) for value in processor],
            "added_wall_us": round(statistics.median(wall), 1),
        }
    compared["laggard"]["hot_path"] = os.environ.get("LAGGARD_HOT_PATH", "native")
    return compared


def in_turns(style: str, most: int, alone: int) -> dict[str, float]:
    """Return what laggard and OpenTelemetry inline add in turns of one process, and what laggard's drain takes.

    Args:
        style: how the loop trains.
        most: turns at most; fewer where the figure is known before.
        alone: steps in a row, for the drain.
    """
    variants = ("bare", "laggard", "inline")
    with Child("beside.py", style, MILLISECONDS, *variants) as child:
        child.wait()
        comparison = Comparison(variants)
        comparison.measure_until(child, "laggard", most)
        own = child.ask("alone", alone)
    found: dict[str, float] = {"step_us": comparison.step(), "turns": comparison.turns}
    for variant in variants[1:]:
        found[f"{variant}_us"], found[f"{variant}_error_us"] = comparison.added(variant)
        found[f"{variant}_wall_us"], found[f"{variant}_wall_error_us"] = comparison.added(variant, wall=True)
    return found | {name: round(value, 1) for name, value in own.items()}


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
    """Measure everything and write each figure down as soon as it is there."""
    parser = argparse.ArgumentParser(description="Measure what laggard costs, beside its peers.")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything runs")
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often everything runs in turns (default %(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=(*MEASURED, *versions.MEASURED), metavar="FIGURE",
        help=f"make these figures alone: {', '.join(MEASURED)}; with --beside {', '.join(versions.MEASURED)}",
    )  # fmt: skip
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="CHECKOUT",
        help="compare with the laggard of another checkout, and write nothing",
    )
    options = parser.parse_args()
    known = MEASURED if options.beside is None else versions.MEASURED
    chosen = options.only or list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--only must be of {', '.join(known)} here, got {unknown[0]}")
    if options.beside is not None:
        sys.exit(versions.compare(options.beside, chosen, quick=options.quick))
    path = DOCS / "benchmarks.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for name in chosen:
        found[name] = MEASURED[name](options)
        # Whoever reads the page learns which figures are of which run.
        found["runs"][name] = began
        found["by_the_clock"] = [other for other in found["by_the_clock"] if other != name]
        if not options.quick:
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            pages.write(DOCS.parent, found)
    if options.quick:
        print(pages.page(found))


def in_style(style: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """Return what measures a style of training."""
    # A step of these takes four times as long.
    long = style in ("ddp", "accumulation")
    most, alone = (1500, 3000) if long else (3000, 12_000)

    def measure(options: argparse.Namespace) -> dict[str, Any]:
        turns, rounds, *here = (2, 1, 3, 500) if options.quick else (75, options.rounds, most, alone)
        return compare(style, turns, rounds) | {"in_turns": in_turns(style, *here)}

    return measure


def long_step(options: argparse.Namespace, hot_path: str) -> dict[str, Any]:
    """Measure what laggard adds to a longer step."""
    with Child("turns.py", LONG_MILLISECONDS, environment={"LAGGARD_HOT_PATH": hot_path}) as child:
        child.wait()
        comparison = Comparison(("bare", "laggard"))
        comparison.measure_until(child, "laggard", 3 if options.quick else 1000)
    added, error = comparison.added("laggard")
    return {
        "step_us": comparison.step(wall=True),
        "beside_work_us": comparison.step(),
        "turns": comparison.turns,
        "added_us": added,
        "added_error_us": error,
    }


def exporters(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the node exporter and its peers."""
    return run("exporters.py", 50) if options.quick else run("exporters.py", 150, "--days")


def both(measure: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Measure with the native hot path, and as ``python`` with the one in Python."""
    return {**measure("native"), "python": measure("python")}


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Train for as long as leaks take to show, both hot paths at once: each needs one processor."""
    minutes = 0.2 if options.quick else 20
    measure = functools.partial(run, "soak.py", "--minutes", minutes, timeout=minutes * 60 + 600)
    with ThreadPoolExecutor(2) as threads:
        native, python = (threads.submit(measure, hot_path=hot_path) for hot_path in ("native", "python"))
        return {**native.result(), "python": python.result()}


#: Every figure by its name in the file, and what measures it.
MEASURED: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "machine": lambda _: machine(),
    "hot_path": lambda options: both(
        lambda hot_path: run("hot_path.py", 2 if options.quick else 25, hot_path=hot_path)
    ),
    **{style: in_style(style) for style in STYLES},
    "long": lambda options: both(lambda hot_path: long_step(options, hot_path)),
    "process": lambda options: run("process.py", 200 if options.quick else 2000),
    "exporters": exporters,
    "soak": soak,
}


if __name__ == "__main__":
    main()
