"""How often the shipped rules are right: simulated runs, judged by Prometheus' own rule engine.

python -m evaluation --seeds 1 2 --json accuracy.json
python -m evaluation --seeds 7 --scenarios slow_data hang_stopped --sizes 8
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from evaluation.engine import BINARY, rule_files, run
from evaluation.model.job import Case
from evaluation.plan import LARGE_RANKS, SIZES, batches, cases, large
from evaluation.report import picture, table
from evaluation.scenarios import SCENARIOS
from evaluation.score import Record, record, summary


def main() -> int:
    """Run the evaluation; return 0 whatever the figures say."""
    options = _options()
    if not BINARY.exists():
        print("evaluation: no rule engine; run scripts/build_rule_engine.sh, which needs Go", file=sys.stderr)
        return 2
    begun = time.monotonic()
    records: list[Record] = []
    seeds: list[int] = []
    failed: dict[str, str] = {}
    for path in options.add:
        earlier: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        records += earlier["records"]
        seeds += earlier["seeds"]
        failed |= earlier["failed_rules"]
    with ProcessPoolExecutor(options.workers) as pool:
        for found, errors in pool.map(_play, _all_batches(options), itertools.repeat(options.rules)):
            records += found
            failed |= errors
            print(f"\r{len(records)} runs, {time.monotonic() - begun:.0f} s", end="", file=sys.stderr, flush=True)
            # Whoever interrupts a long evaluation keeps what is done.
            result = {"seeds": sorted({*seeds, *options.seeds}), "failed_rules": failed, **summary(records)}
            if options.json:
                options.json.write_text(json.dumps({**result, "records": records}) + "\n", encoding="utf-8")
    print(file=sys.stderr)
    result = {"seeds": sorted({*seeds, *options.seeds}), "failed_rules": failed, **summary(records)}
    print(table(result))
    if options.picture:
        options.picture.write_text(picture(result), encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="evaluation", description="How often the shipped rules are right.")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2], help="(default 1 2)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="ranks of a run")
    parser.add_argument("--scenarios", nargs="+", choices=sorted(SCENARIOS), default=sorted(SCENARIOS), metavar="NAME")
    parser.add_argument("--no-large", action="store_true", help=f"no runs of {LARGE_RANKS:,} ranks")
    parser.add_argument("--workers", type=int, default=2, help="batches at once")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="an SVG")
    parser.add_argument("--rules", type=Path, metavar="FOLDER", help="rule files other than the shipped ones")
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="FILE", help="earlier results, to add to")
    return parser.parse_args()


def _all_batches(options: argparse.Namespace) -> list[tuple[list[Case], int]]:
    made: list[tuple[list[Case], int]] = []
    for seed in options.seeds:
        made += [(batch, seed) for batch in batches(cases(seed, options.scenarios, options.sizes))]
        if not options.no_large:
            made += [([case], seed) for case in large(seed, options.scenarios)]
    return made


def _play(batch: tuple[list[Case], int], rules: Path | None) -> tuple[list[Record], dict[str, str]]:
    cases, seed = batch
    result = run([case.job for case in cases], seed, files=rule_files(rules))
    return [record(case, result.fired) for case in cases], result.failed


if __name__ == "__main__":
    sys.exit(main())
