"""What documents state of the figures in ``docs/benchmarks.json``: a page of their own, and a table in two others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lab.printing import between

#: Between these lines of the README and of the comparison stand the tables.
BEGIN, END = "<!-- overhead: made by python -m lab.benchmarks -->", "<!-- end of overhead -->"

METHOD = """\
## How it is measured

- **Turns.** The variants of a table train by turns, in processes of their own or in one process. What else a machine
  does changes from second to second, so a stretch is 3 to 40 steps; longer ones do not lessen the noise.
- **Processor time.** What a variant adds to a step is processor time of the training thread. It holds on a busy
  machine: it leaves out the time in which other processes run, and in which a rank waits for its peer. Some tables
  have the time by the clock too.
- **Intervals.** ± is the 95 % confidence interval of a median, with nothing assumed of the noise. Turns go on until it
  is 3 % or 1 µs, within limits.
- **Ratios** use the greater of laggard's two figures: that of processes of their own, which differ by about as much
  as it adds, and that of turns of one process plus its interval.
- **Two versions.** `make bench-overhead BENCH="--beside CHECKOUT"` compares this version with another one, side by
  side: for each figure a difference and a ratio with their intervals. The exit code says whether one is worse by more
  than 3 % and 1 µs.
- **Instructions.** `python -m lab.benchmarks.instructions --beside CHECKOUT` counts those of the training thread, under
  Valgrind. No other process and no place in memory changes their number, so it tells two versions apart where times
  do not."""


def write(root: Path, found: dict[str, Any]) -> None:
    """Write the figures into the documents of a checkout."""
    (root / "docs" / "benchmarks.md").write_text(page(found), encoding="utf-8")
    for path, text in ((root / "README.md", summary(found)), (root / "docs" / "comparison.md", beside_peers(found))):
        path.write_text(between(path.read_text(encoding="utf-8"), BEGIN, END, text), encoding="utf-8")


def summary(found: dict[str, Any]) -> str:
    """Return the table of the README."""
    toy, process, exporter = found["eager"], found["process"], found["exporters"]["laggard"]
    ours = _ours(found, "eager")
    rows = {
        f"a step of {found['long']['step_us'] / 1000:.0f} ms": _long(found),
        f"a toy step of {toy['bare']['wall_us'] / 1000:.2f} ms": (
            f"{ours:.0f} µs, {100 * ours / toy['bare']['wall_us']:.1f} %; TraceML adds "
            f"{_times(toy['traceml'], ours)} times as much, torchtel {_times(toy['torchtel'], ours)} times"
            f"{_in_python(toy['laggard'])}"
        ),
        "start of a process": f"{process['start_seconds']:.2f} s and {process['resident_mib']} MiB",
        "series of a rank": f"{process['series']} without a process group, 200 at most",
        "the node exporter, eight GPUs": (
            f"{exporter['rss_mb']:.0f} MB, {exporter['idle_percent']:.1f} % of a processor"
        ),
    }
    return "\n".join(["| | adds |", "|---|---|", *(f"| {name} | {adds} |" for name, adds in rows.items())])


def beside_peers(found: dict[str, Any]) -> str:
    """Return the table of the comparison, and what a longer step shows."""
    toy, names, ours = found["eager"], _names(found), _ours(found, "eager")
    added = {variant: ours if variant == "laggard" else toy[variant]["added_us"] for variant in names}
    lines = [
        f"Steps of {toy['bare']['wall_us'] / 1000:.2f} ms:",
        "",
        "| | added to a step, µs | times laggard's |",
        "|---|---|---|",
        *(
            f"| {name}{_in_python(toy[variant])} | {added[variant]} | {added[variant] / ours:.1f} |"
            for variant, name in names.items()
        ),
        "",
        f"To a step of {found['long']['step_us'] / 1000:.0f} ms laggard adds {_long(found)}.",
    ]
    return "\n".join(lines)


def page(found: dict[str, Any]) -> str:
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
        "Written by `make bench`. The figures with all rounds are in `benchmarks.json`. Ratios carry over to other",
        "machines better than microseconds do.",
        "",
        *_apart(found["runs"]),
        *_by_the_clock(found["by_the_clock"]),
        f"Machine: {where['processor']}, {where['cores']} cores, no GPU; Python {where['python']},",
        f"torch {where['torch']}, OpenTelemetry SDK {where['opentelemetry_sdk']}.",
        "",
        *METHOD.splitlines(),
        "",
        "## Training-thread time of one step with five phases",
        "",
        "Cold: 96 MB are read before each step, as the step's own work would do.",
        "",
        "| | hot, µs | cold, µs | in Python, hot | in Python, cold |",
        "|---|---|---|---|---|",
        *(f"| {text} | {_hot(hot_path, name)} | {_hot(hot_path['python'], name)} |" for name, text in levels.items()),
        "",
        "The wheel for a known platform has the native hot path; with the one for any platform, or",
        "`LAGGARD_HOT_PATH=python`, it is Python.",
        "",
    ]
    titles = {
        "eager": "A toy model, eager",
        "compiled": "The same, compiled",
        "ddp": "The same on two ranks, with DistributedDataParallel over gloo",
        "accumulation": "The same, with the gradients of four batches in a step",
    }
    for key, title in titles.items():
        lines += [*_compared(title, found[key], _names(found), _ours(found, key)), *_beside(found[key]["in_turns"])]
    lines += _in_turns(found["long"])
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
    if "soak" in found:
        lines += _soaked(found["soak"])
    if "exporters" in found:
        lines += _exporters_section(found["exporters"])
    return "\n".join(lines)


def _apart(runs: dict[str, str]) -> list[str]:
    """Return which figures are of another run than most, by their names in the file."""
    usual, _ = Counter(runs.values()).most_common(1)[0]
    apart = [name for name, run in runs.items() if run != usual]
    return [f"Measured in another run than the rest: {', '.join(f'`{name}`' for name in apart)}.", ""] if apart else []


def _by_the_clock(names: list[str]) -> list[str]:
    """Return which figures no run has measured in processor time yet, by their names in the file."""
    if not names:
        return []
    return [
        f"Not measured in processor time yet: {', '.join(f'`{name}`' for name in names)}.",
        "What is added there is by the clock on the wall, and the intervals are standard errors times 1.96.",
        "",
    ]


def _hot(found: dict[str, Any], level: str) -> str:
    return f"{found[level]['hot']} | {found[level]['cold']}"


def _soaked(found: dict[str, Any]) -> list[str]:
    """Return the section on a loop that trains for long."""
    rows = {"native": found, "in Python": found["python"]}
    return [
        f"## {found['minutes']:.0f} minutes of training",
        "",
        "Steps with all that laggard has: an endpoint, traces, `laggard.log`, and every ten seconds a dump of the last",
        "steps; both hot paths at once, on a processor each. The first third is left out of how memory grows.",
        "",
        "| hot path | steps | memory at the end, MB | grows by, KB a minute | longest buffer, events | dropped |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {row['steps']} | {row['resident_bytes'][1] / 1e6:.1f} | "
            f"{row['slope_bytes_per_minute'] / 1e3:.1f} ± {row['slope_error_bytes_per_minute'] / 1e3:.1f} | "
            f"{row['longest_buffer']} | {sum(row['dropped'].values())} |"
            for name, row in rows.items()
        ),
        "",
    ]


def _exporters_section(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the section on the node exporter."""
    titles = {
        "laggard": "laggard-exporter",
        "laggard-amd": "laggard-exporter, GPUs of AMD on our fake of AMD SMI",
        "nvitop": "nvitop-exporter",
        "node_exporter": "node_exporter (no GPUs)",
    }
    columns = {
        "rss_mb": "memory of all processes (RSS), MB",
        "pss_mb": "what they share counted once (PSS), MB",
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


def _in_turns(found: dict[str, Any]) -> list[str]:
    """Return the section on a step that is long beside what laggard adds."""
    step, python = found["step_us"], found["python"]
    return [
        f"## A longer step: {step / 1000:.2f} ms",
        "",
        "Work of that length (a multiplication of matrices in the fetch, the forward, the backward and the optimizer)",
        "leaves the caches cold, and the clock stops while it runs: measured is the rest of the step, with laggard and",
        f"without it in {found['turns']} turns of one process.",
        "",
        f"laggard adds {found['added_us']} ± {found['added_error_us']} µs, {found['added_us'] / step:.3%} of the step;",
        f"what torch does beside its work takes {found['beside_work_us']} µs. With the hot path in Python it adds",
        f"{python['added_us']} ± {python['added_error_us']} µs, {python['added_us'] / python['step_us']:.3%}.",
        "",
    ]


def _compared(title: str, rows: dict[str, dict[str, Any]], names: dict[str, str], ours: float) -> list[str]:
    """Return the section on one loop in processes of its own.

    Args:
        title: what it trains.
        rows: what was measured of each variant.
        names: what the variants are called.
        ours: the microseconds of a step that count as what laggard adds.
    """
    bare = rows["bare"]["wall_us"]
    lines = [
        f"## {title}: {bare / 1000:.2f} ms a step",
        "",
        "| | added to a step, µs | in the rounds | by the clock, µs | share of the step | times laggard's |",
        "|---|---|---|---|---|---|",
    ]
    for variant, name in names.items():
        added, rounds = rows[variant]["added_us"], rows[variant]["added_us_rounds"]
        spread = f"{min(rounds)} to {max(rounds)}"
        times = "1.0" if variant == "laggard" else _times(rows[variant], ours)
        wall = rows[variant]["added_wall_us"]
        lines.append(
            f"| {name}{_in_python(rows[variant])} | {added} | {spread} | {wall} | {added / bare:.2%} | {times} |"
        )
    return [*lines, ""]


def _beside(found: dict[str, float]) -> list[str]:
    """Return what the same loop shows in turns of one process."""
    text = (
        f"In {found['turns']} turns of one process laggard adds {found['laggard_us']} ± {found['laggard_error_us']} µs "
        f"({found['laggard_wall_us']} ± {found['laggard_wall_error_us']} µs by the clock), OpenTelemetry inline "
        f"{found['inline_us']} ± {found['inline_error_us']} µs, "
        f"{(found['inline_us'] - found['inline_error_us']) / _at_most(found):.1f} times as much at least. "
        f"laggard's hooks count {found['self_time_us']} µs of a step themselves; its drain thread needs "
        f"{found['drain_us']} µs of processor time for each step."
    )
    return [text, ""]


def _names(found: dict[str, Any]) -> dict[str, str]:
    versions = found["machine"]["peers"]
    return {
        "laggard": "laggard, zero code",
        "traceml": f"traceml-ai {versions['traceml-ai']}",
        "torchtel": f"torchtel {versions['torchtel']}",
        "inline": "OpenTelemetry inline (span and histogram for each phase)",
    }


def _long(found: dict[str, Any]) -> str:
    long = found["long"]
    return f"{long['added_us']:.0f} µs, {100 * long['added_us'] / long['step_us']:.2f} %"


def _in_python(row: dict[str, Any]) -> str:
    return ", hot path in Python" if row.get("hot_path") == "python" else ""


def _ours(found: dict[str, Any], style: str) -> float:
    """Return what counts as added by laggard to a step, in microseconds: the greater of two figures.

    Processes differ by as much as it adds, so there it can come out as nothing, or as less.
    """
    return max(found[style]["laggard"]["added_us"], _at_most(found[style]["in_turns"]))


def _at_most(found: dict[str, float]) -> float:
    """Return what laggard adds by turns of one process, with what that may be off by."""
    return round(found["laggard_us"] + found["laggard_error_us"], 1)


def _times(row: dict[str, Any], ours: float) -> str:
    return f"{row['added_us'] / ours:.1f}"
