"""All measurements in one run, and the document that states them.

    python -m benchmarks [--quick] [--rounds N]      writes docs/benchmarks.json and docs/benchmarks.md
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

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
VARIANTS = ("bare", "laggard", "traceml", "torchtel", "inline")
NAMES = {
    "bare": "bare loop",
    "laggard": "laggard, zero code",
    "traceml": f"traceml-ai {metadata.version('traceml-ai')}",
    "torchtel": f"torchtel {metadata.version('torchtel')}",
    "inline": "OpenTelemetry inline (span and histogram for each phase)",
}


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
        "load_before": round(os.getloadavg()[0], 2),
    }


def document(found: dict[str, Any]) -> str:
    """Return the page that states the figures."""
    levels = {
        "floor": "ten readings of the clock",
        "recorder_alone": "recorder alone",
        "with_state_file": "with the state file",
        "with_ddp_statistics": "with DDP's wait statistics (300 parameters)",
    }
    where = found["machine"]
    hot_path = found["hot_path"]
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; what is compared ran in turns of one run. The figures with all rounds are in",
        "`benchmarks.json`. Ratios carry over to other machines better than microseconds do.",
        "",
        f"Machine: {where['processor']}, {where['cores']} cores, no GPU; Python {where['python']},",
        f"torch {where['torch']}, OpenTelemetry SDK {where['opentelemetry_sdk']}.",
        "",
        "## Training-thread time of one step with five phases",
        "",
        "Cold: 96 MB are read before each step, as the step's own work would do.",
        "",
        "| | hot, µs | cold, µs |",
        "|---|---|---|",
        *(f"| {text} | {hot_path[name]['hot']} | {hot_path[name]['cold']} |" for name, text in levels.items()),
        "",
    ]
    for title, key in (("A toy model, eager", "eager"), ("The same, compiled", "compiled")):
        lines += compared(title, found[key], found["beside"][key])
    lines += in_turns(found["long"])
    process = found["process"]
    lines += [
        "## A process",
        "",
        f"`import torch` takes {process['import_torch_bare_seconds']} s.",
        f"laggard adds {process['import_torch_seconds']} s to it, {process['start_seconds']} s to the whole start,",
        f"and {process['resident_mib']} MiB of memory.",
        f"A rank without a process group shows {process['series']} series in {process['scrape_bytes']} bytes a scrape.",
        "",
    ]
    if "exporters" in found:
        lines += exporters_section(found["exporters"])
    return "\n".join(lines)


def exporters_section(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the section on the node exporter."""
    titles = {"laggard": "laggard-exporter", "nvitop": "nvitop-exporter", "node_exporter": "node_exporter (no GPUs)"}
    columns = {
        "rss_mb": "memory of all processes (RSS), MB",
        "scrape_ms_median": "scrape, median, ms",
        "scrape_ms_p99": "scrape, 99th percentile, ms",
        "processor_ms_per_scrape": "processor time of a scrape, ms",
        "idle_percent": "processor when idle, %",
        "series": "series",
        "series_of_gpus": "of these on GPUs",
    }
    lines = [
        "## A node of eight GPUs",
        "",
        "On our fake of NVML, so without the time that a real driver takes; `nvitop-exporter` polls once a second.",
        f"Load of the machine while this ran: {found['laggard']['load']}.",
        "",
        "| | " + " | ".join(columns.values()) + " |",
        "|" + "---|" * (len(columns) + 1),
        *(
            f"| {titles[name]} | " + " | ".join(str(figures[column]) for column in columns) + " |"
            for name, figures in found.items()
        ),
        "",
    ]
    if days := found["laggard"].get("days"):
        lines += [
            f"{days['scrapes']} scrapes back to back, three days at one every 15 seconds: memory went from",
            f"{days['rss_mb_first']} to {days['rss_mb_last']} MB,",
            f"by {days['growth_last_day_mb']} MB on the last day.",
            "",
        ]
    return lines


def in_turns(found: dict[str, Any]) -> list[str]:
    """Return the section on a step that is long beside what laggard adds."""
    step = found["step_us"]
    return [
        f"## A longer step: {step / 1000:.2f} ms",
        "",
        "Work of that length (a multiplication of matrices in the fetch, the forward, the backward and the optimizer)",
        "leaves the caches cold, and the clock stops while it runs: measured is the rest of the step, with laggard and",
        f"without it in {found['turns']} turns of one process, plus or minus what the median of so many varies by.",
        "",
        f"laggard adds {found['added_us']} ± {found['added_error_us']} µs, {found['added_us'] / step:.3%} of the step;",
        f"what torch does beside its work takes {found['beside_work_us']} µs.",
        "",
    ]


def compared(title: str, rows: dict[str, dict[str, Any]], beside: dict[str, float]) -> list[str]:
    """Return the section on one loop, in processes of its own and in turns of one process."""
    ours, bare = rows["laggard"], rows["bare"]["step_us"]
    lines = [
        f"## {title}: {bare / 1000:.2f} ms a step",
        "",
        "| | added to a step, µs | share of the step | times laggard's |",
        "|---|---|---|---|",
    ]
    for variant, row in rows.items():
        if variant != "bare":
            times = f"{row['added_us'] / ours['added_us']:.1f}" if ours["added_us"] > 0 else "-"
            lines.append(f"| {NAMES[variant]} | {row['added_us']} | {row['added_us'] / bare:.2%} | {times} |")
    own = (
        f"By its own count laggard's hooks took {ours['self_time_us']} µs of a step on the training thread, "
        f"{ours['self_time_us'] / bare:.3%}; its drain thread needed {ours['drain_us']} µs of processor time for each."
    )
    turns = (
        f"In {beside['turns']} turns of one process, where less else differs: laggard {beside['laggard_us']} ± "
        f"{beside['laggard_error_us']} µs, OpenTelemetry inline {beside['inline_us']} ± "
        f"{beside['inline_error_us']} µs, "
        f"{beside['inline_us'] / beside['laggard_us']:.1f} times as much."
    )
    return [*lines, "", own, "", turns, ""]


def main() -> None:
    """Measure everything, write both files."""
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
    """Write both files, or print the page of a quick round."""
    text = document(found)
    if quick:
        print(text)
        return
    (DOCS / "benchmarks.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (DOCS / "benchmarks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
