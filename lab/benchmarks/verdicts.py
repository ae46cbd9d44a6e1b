"""Who names the slow rank: laggard's rules, and rules that look at step times or at the longest collectives.

    python -m lab.benchmarks.verdicts --seeds 41 42 [--json FILE] [--document docs/accuracy.md]

Each plays the same simulated runs on Prometheus' own rule engine: one or several slow ranks, and runs in which nobody
is slow. The rivals are written for this comparison (lab/benchmarks/rivals), and each is played with several limits.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from lab.evaluation.engine import BINARY, rule_files, run
from lab.evaluation.model.job import Case
from lab.evaluation.plan import SIZES, batches, cases
from lab.evaluation.scenarios import SCENARIOS
from lab.evaluation.score import Record, record
from lab.printing import between
from lab.printing import table as printed

RIVALS = Path(__file__).parent / "rivals"
LIMITS = {"step-time": (1.02, 1.1, 1.3), "longest-collective": (1.1, 1.5, 2.0)}
ALERT = "TrainingStraggler"
SLOW = tuple(name for name in SCENARIOS if name.startswith("slow_"))
CALM = tuple(name for name in SCENARIOS if name.startswith("healthy"))
#: Runs of at most 64 ranks take minutes.
QUICK = 64
#: Between these lines of a document stands the table.
BEGIN, END = "<!-- verdicts: made by python -m lab.benchmarks.verdicts --document -->", "<!-- end of verdicts -->"


def players(folder: Path) -> dict[str, list[Path]]:
    """Return the rule files of each, those of the rivals written to a folder with their limits."""
    found = {"laggard": rule_files()}
    for name, limits in LIMITS.items():
        text = (RIVALS / f"{name}.yml").read_text(encoding="utf-8")
        for limit in limits:
            path = folder / f"{name}-{limit}.yml"
            path.write_text(text.replace("LIMIT", str(limit)), encoding="utf-8")
            found[f"{name}, above {limit}"] = [path]
    return found


def play(batch: list[Case], seed: int, files: list[Path]) -> list[Record]:
    """Return what a player's rules said of some runs.

    Raises:
        RuntimeError: a rule could not be evaluated.
    """
    result = run([case.job for case in batch], seed, files=files)
    if result.failed:
        raise RuntimeError(f"rules failed: {result.failed}")
    return [record(case, result.fired) for case in batch]


def figures(records: list[Record]) -> dict[str, Any]:
    """Count what was said of slow ranks, in runs with one and in runs without."""
    slow = [each for each in records if ALERT in each["expected"]]
    calm = [each for each in records if each["scenario"].startswith("healthy")]

    def said(each: Record, *kinds: str) -> list[dict[str, Any]]:
        return [outcome for outcome in each["outcomes"] if outcome["alert"] == ALERT and outcome["kind"] in kinds]

    found = [outcome for each in slow for outcome in said(each, "found")]
    return {
        "slow_runs": len(slow),
        "slow_ranks": sum(len(said(each, "found", "missed")) for each in slow),
        "found": len(found),
        "with_phase": sum(outcome["phase_right"] for outcome in found),
        "runs_with_wrong_rank": sum(bool(said(each, "wrong rank", "false")) for each in slow),
        "calm_runs": len(calm),
        "calm_runs_with_alert": sum(bool(said(each, "wrong rank", "false")) for each in calm),
        "median_delay": median(outcome["delay"] for outcome in found) if found else None,
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as Markdown."""
    columns = (
        "rules", "slow ranks named", "with the phase", "another named", "healthy runs with an alert", "median delay",
    )  # fmt: skip
    rows = [
        (
            name,
            f"{each['found']} of {each['slow_ranks']}",
            each["with_phase"],
            f"{each['runs_with_wrong_rank']} of {each['slow_runs']}",
            f"{each['calm_runs_with_alert']} of {each['calm_runs']}",
            "" if each["median_delay"] is None else f"{each['median_delay']:.0f} s",
        )
        for name, each in found.items()
    ]
    return printed(columns, rows)


def main() -> int:
    """Let all of them play; return 0 whatever the figures say."""
    parser = argparse.ArgumentParser(prog="lab.benchmarks.verdicts", description="Who names the slow rank.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[41])
    parser.add_argument("--sizes", type=int, nargs="+", default=[size for size in SIZES if size <= QUICK])
    parser.add_argument("--workers", type=int, default=2, help="batches at once (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--document", type=Path, metavar="FILE", help="Markdown with a place for the table")
    given = parser.parse_args()
    if not BINARY.exists():
        print(
            "lab.benchmarks.verdicts: no rule engine; run scripts/tools/build_rule_engine.sh, which needs Go",
            file=sys.stderr,
        )
        return 2
    played = [(batch, seed) for seed in given.seeds for batch in batches(cases(seed, (*SLOW, *CALM), given.sizes))]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(given.workers) as pool:
        for name, files in players(Path(folder)).items():
            jobs = [pool.submit(play, batch, seed, files) for batch, seed in played]
            found[name] = figures([each for job in jobs for each in job.result()])
            print(f"{name}: {found[name]}", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps({"seeds": given.seeds, "rules": found}, indent=1) + "\n", encoding="utf-8")
    text = table(found)
    print(text)
    if given.document:
        seeds = f"Seed{'s' if len(given.seeds) > 1 else ''} {', '.join(map(str, given.seeds))}."
        old = given.document.read_text(encoding="utf-8")
        given.document.write_text(between(old, BEGIN, END, f"{seeds}\n\n{text}"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
