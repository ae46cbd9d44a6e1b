"""How often the shipped rules are right: simulated runs, judged by Prometheus' own rule engine.

python -m lab.evaluation --seeds 1 2 --json accuracy.json
python -m lab.evaluation --seeds 7 --scenarios slow_data hang_stopped --sizes 8

In pieces, each in minutes and whenever there is time for it; then all of them together:

python -m lab.evaluation --seeds 1 2 --part 3/12 --json part-3.json
python -m lab.evaluation --add part-*.json --json accuracy.json --picture docs/accuracy.svg --document docs/accuracy.md
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

from lab.evaluation.engine import BINARY, rule_files, run
from lab.evaluation.model.job import Case
from lab.evaluation.plan import LARGE_RANKS, SIZES, batches, cases, large
from lab.evaluation.report import picture, table, with_figures
from lab.evaluation.scenarios import SCENARIOS
from lab.evaluation.score import Record, record, summary


def main() -> int:
    """Run the evaluation; return 0 whatever the figures say."""
    given = options()
    todo = all_batches(given)
    if todo and not BINARY.exists():
        print("evaluation: no rule engine; run scripts/tools/build_rule_engine.sh, which needs Go", file=sys.stderr)
        return 2
    begun = time.monotonic()
    seeds: set[int] = set(given.seeds)
    records: list[Record] = []
    failed: dict[str, str] = {}
    for path in given.add:
        earlier: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        records += earlier["records"]
        seeds |= set(earlier["seeds"])
        failed |= earlier["failed_rules"]
    with ProcessPoolExecutor(given.workers) as pool:
        for found, errors in pool.map(_play, todo, itertools.repeat(given.rules)):
            records += found
            failed |= errors
            print(f"\r{len(records)} runs, {time.monotonic() - begun:.0f} s", end="", file=sys.stderr, flush=True)
            # Whoever interrupts a long evaluation keeps what is done.
            _keep(given.json, seeds, failed, records)
    print(file=sys.stderr)
    result = _keep(given.json, seeds, failed, records)
    print(table(result))
    if given.picture:
        given.picture.write_text(picture(result), encoding="utf-8")
    if given.document:
        given.document.write_text(with_figures(given.document.read_text(encoding="utf-8"), result), encoding="utf-8")
    return 0


def _keep(path: Path | None, seeds: set[int], failed: dict[str, str], records: list[Record]) -> dict[str, Any]:
    """Return the result so far, and write it with the records to a file, if there is one."""
    result = {"seeds": sorted(seeds), "failed_rules": failed, **summary(records)}
    if path:
        path.write_text(json.dumps({**result, "records": records}) + "\n", encoding="utf-8")
    return result


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(prog="lab.evaluation", description="How often the shipped rules are right.")
    parser.add_argument("--seeds", type=int, nargs="+", help="(default 1 2, or none with --add)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="ranks of a run")
    parser.add_argument("--scenarios", nargs="+", choices=sorted(SCENARIOS), default=sorted(SCENARIOS), metavar="NAME")
    parser.add_argument("--no-large", action="store_true", help=f"no runs of {LARGE_RANKS:,} ranks")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="the Kth of N pieces of it")
    parser.add_argument("--step", type=_step, metavar="SECONDS",
                        help="own time of all steps but those of 10,000 ranks, instead of what is drawn")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="batches at once")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="an SVG")
    parser.add_argument("--rules", type=Path, metavar="FOLDER", help="rule files other than the shipped ones")
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="FILE", help="earlier results, to add to")
    parser.add_argument("--document", type=Path, metavar="FILE", help="Markdown with a place for the figures")
    given = parser.parse_args(arguments)
    if given.seeds is None:
        given.seeds = [] if given.add else [1, 2]
    return given


def _step(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 60:  # noqa: PLR2004 - what windows of half an hour have verdicts for
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 60")
    return seconds


def _part(text: str) -> tuple[int, int]:
    piece, _, pieces = text.partition("/")
    if not (piece.isdecimal() and pieces.isdecimal() and 1 <= int(piece) <= int(pieces)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N, as in 3/12")
    return int(piece), int(pieces)


def all_batches(given: argparse.Namespace) -> list[tuple[list[Case], int]]:
    """Return the batches to play, each with its seed: all of them, or those of one piece."""
    made: list[tuple[list[Case], int]] = []
    for seed in given.seeds:
        made += [(batch, seed) for batch in batches(cases(seed, given.scenarios, given.sizes, given.step))]
        if not given.no_large:
            made += [([case], seed) for case in large(seed, given.scenarios)]
    piece, pieces = given.part
    return made[piece - 1 :: pieces]


def _play(batch: tuple[list[Case], int], rules: Path | None) -> tuple[list[Record], dict[str, str]]:
    cases, seed = batch
    result = run([case.job for case in cases], seed, files=rule_files(rules))
    return [record(case, result.fired) for case in cases], result.failed


if __name__ == "__main__":
    sys.exit(main())
