"""What the rules cost: the same samples through the engine with and without them.

    python -m evaluation.cost --ranks 100 1000 10000

Process time of storage and rules together, less that of storage alone, for each interval of 15 seconds; and how long
each group of rules takes: what Prometheus' own rule manager says, less the time that others used the processor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evaluation.engine import BINARY, INTERVAL, evaluate, read_by_rules, rule_files
from evaluation.load import targets

#: All groups are evaluated, the slowest twice, and the windows that most cost is in are full.
_SECONDS = 600.0


def main() -> int:
    """Print tables; return the exit status."""
    parser = argparse.ArgumentParser(prog="evaluation.cost", description="What the rules cost.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of virtual time (default %(default)s)")
    parser.add_argument("--top", type=int, default=0, metavar="COUNT", help="the dearest rules as well")
    parser.add_argument("--rules", type=Path, metavar="FOLDER", help="rule files other than the shipped ones")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what each rule costs, of the last number of ranks")
    options = parser.parse_args()
    if not BINARY.exists():
        print("evaluation: no rule engine; run scripts/build_rule_engine.sh, which needs Go", file=sys.stderr)
        return 2
    print(
        "| ranks | series | with rules | without | rules, for 15 s | and 1,000 ranks | longest cycle | late |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    files = rule_files(options.rules)
    names = read_by_rules(files)
    cost: dict[str, Any] = {}
    for ranks in options.ranks:
        loaded = evaluate([(each, options.seconds) for each in targets(ranks, names)], 1, files=files, horizons={})
        bare = evaluate([(each, options.seconds) for each in targets(ranks, names)], 1, files=[], horizons={})
        cost = loaded.cost
        used, stored = cost["process_seconds"], bare.cost["process_seconds"]
        each = (used - stored) / (options.seconds / INTERVAL)
        print(
            f"| {ranks:,} | {loaded.series:,} | {used:.1f} s | {stored:.1f} s | {each:.3f} s"
            f" | {1000 * each / ranks:.3f} s | {cost['longest_cycle_seconds']:.2f} s | {cost['late_evaluations']} |",
            flush=True,
        )
        for name, error in loaded.failed.items():
            print(f"evaluation: {name} failed: {error}", file=sys.stderr)
    rows = [(each["group"], f"{each['interval']:.0f} s", _share(each)) for each in cost["rules"]]
    print(f"\nBy group, for 15 s and {options.ranks[-1]:,} ranks:\n\n| group | every | takes |\n|---|---:|---:|")
    print("\n".join(_table(_sums(rows))))
    if options.top:
        rules = [
            (" ".join((each["rule"], *each.get("labels", {}).values())), "", _share(each)) for each in cost["rules"]
        ]
        print("\n| rule | | takes |\n|---|---:|---:|")
        print("\n".join(_table(_sums(rules))[: options.top]))
    if options.json:
        options.json.write_text(json.dumps(cost) + "\n", encoding="utf-8")
    return 0


def _share(rule: dict[str, Any]) -> float:
    """Return the seconds that a rule takes in 15, on average."""
    return rule["seconds"] / max(rule["evaluations"], 1) * INTERVAL / rule["interval"]


def _sums(rows: Iterable[tuple[str, str, float]]) -> list[tuple[str, str, float]]:
    sums: dict[tuple[str, str], float] = {}
    for name, every, seconds in rows:
        sums[name, every] = sums.get((name, every), 0.0) + seconds
    return sorted(((*key, seconds) for key, seconds in sums.items()), key=lambda row: -row[2])


def _table(rows: list[tuple[str, str, float]]) -> list[str]:
    return [f"| {name} | {every} | {seconds:.4f} s |" for name, every, seconds in rows]


if __name__ == "__main__":
    sys.exit(main())
