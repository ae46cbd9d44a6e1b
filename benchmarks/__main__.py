"""All measurements in one run, and the documents that state them.

    python -m benchmarks [--quick] [--rounds N]      writes docs/benchmarks.json, and what is stated
    python -m benchmarks --exporters                 the node exporter alone, beside its peers; keeps the other figures

Whatever is compared runs in turns: round by round in processes of its own, or stretch by stretch in one process. What
is stated is the median of the differences to the bare loop beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import pages

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
VARIANTS = ("bare", "laggard", "traceml", "torchtel", "inline")
#: Packages of the peers, whose versions are stated.
PEERS = ("traceml-ai", "torchtel")


def run(script: str, *arguments: object) -> dict[str, Any]:
    """Run one measurement in a process of its own and return what it prints."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(style: str, milliseconds: float, steps: int, rounds: int, variants: tuple[str, ...]) -> dict[str, Any]:
    """Return the added microseconds of each variant, and what it says of itself."""
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    for number in range(rounds):
        for variant in variants:
            results[variant].append(run("loop.py", variant, style, milliseconds, steps))
            print(f"{style} {milliseconds:g} ms, round {number + 1} of {rounds}: {variant}", file=sys.stderr)
    base = [result["step_us"] for result in results["bare"]]
    compared: dict[str, Any] = {}
    for variant, measured in results.items():
        added = [result["step_us"] - bare for result, bare in zip(measured, base, strict=True)]
        compared[variant] = {
            "step_us": round(statistics.median(result["step_us"] for result in measured), 1),
            "added_us": round(statistics.median(added), 1),
            "added_us_rounds": [round(value, 1) for value in added],
        }
        for name in ("self_time_us", "drain_us"):
            if name in measured[0]:
                compared[variant][name] = round(statistics.median(result[name] for result in measured), 1)
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
        "--exporters", action="store_true", help="the node exporter alone; the other figures stay as they are"
    )
    options = parser.parse_args()
    quick: bool = options.quick
    if options.exporters:
        known = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
        write({**known, "exporters": exporters(quick=quick)}, quick=quick)
        return
    rounds, steps = (1, 300) if quick else (options.rounds, 3000)
    found: dict[str, Any] = {
        "machine": machine(),
        "hot_path": run("hot_path.py", 2 if quick else 25),
        "eager": compare("eager", 0.8, steps, rounds, VARIANTS),
        "compiled": compare("compiled", 0.8, steps, rounds, VARIANTS),
        "beside": {style: run("beside.py", style, 0.8, 3 if quick else 150) for style in ("eager", "compiled")},
        "long": run("turns.py", 30, 3 if quick else 400),
        "process": run("process.py", 200 if quick else 2000),
        "exporters": exporters(quick=quick),
    }
    write(found, quick=quick)


def exporters(*, quick: bool) -> dict[str, Any]:
    """Measure the node exporter and its peers."""
    return run("exporters.py", 50) if quick else run("exporters.py", 150, "--days")


def write(found: dict[str, Any], *, quick: bool) -> None:
    """Write figures and documents, or print the page of a quick round."""
    if quick:
        print(pages.page(found))
        return
    (DOCS / "benchmarks.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    pages.write(DOCS.parent, found)


if __name__ == "__main__":
    main()
