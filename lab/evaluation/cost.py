"""What the rules cost: the same samples through the engine with and without them.

    python -m lab.evaluation.cost --ranks 100 1000 10000 [--document docs/accuracy.md --picture docs/cost.svg]

Process time of storage and rules together, less that of storage alone, for each interval of 15 seconds; how long each
group of rules takes: what Prometheus' own rule manager says, less the time that others used the processor; and how many
bytes the queries of the rules allocate, which no neighbour on the machine changes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.evaluation.engine import BINARY, INTERVAL, Result, evaluate, read_by_rules, rule_files
from lab.evaluation.load import targets
from lab.printing import between, growth
from lab.printing import table as printed

#: All groups are evaluated, the slowest twice, and the windows that most cost is in are full.
_SECONDS = 600.0
#: Prometheus' own default for its garbage collector.
_COLLECTION = 75
_MEGABYTE = 1e6
#: Between these lines of a document stand the figures.
BEGIN, END = "<!-- cost: made by python -m lab.evaluation.cost --document -->", "<!-- end of cost -->"


@dataclass(frozen=True)
class Cost:
    """What the engine said of one number of ranks."""

    ranks: int
    seconds: float
    """Virtual time that was played."""
    series: int
    with_rules: float
    """Process time in seconds, as the next."""
    without: float
    each: float
    """Seconds of process time that the rules take in 15 seconds."""
    allocated: float
    """Bytes that their queries allocate in 15 seconds."""
    longest_cycle: float
    """Seconds by the clock for the longest turn of all groups."""
    late: int
    """Evaluations that took longer than their group's interval."""
    rules: list[dict[str, Any]]


def main() -> int:
    """Print tables; return the exit status."""
    parser = argparse.ArgumentParser(prog="lab.evaluation.cost", description="What the rules cost.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of virtual time (default %(default)s)")
    parser.add_argument("--top", type=int, default=0, metavar="COUNT", help="the dearest rules as well")
    parser.add_argument("--collection", type=int, default=_COLLECTION, metavar="PERCENT",
                        help="by which the heap grows before it is collected, GOGC (default %(default)s)")  # fmt: skip
    parser.add_argument("--rules", type=Path, metavar="FOLDER", help="rule files other than the shipped ones")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what each rule costs, of the last number of ranks")
    parser.add_argument("--document", type=Path, metavar="FILE", help="where a document has a place for the figures")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="how they grow, as SVG")
    options = parser.parse_args()
    if options.picture and len(set(options.ranks)) < 2:  # noqa: PLR2004 - a line has two ends
        parser.error("--picture: takes two numbers of ranks or more")
    if not BINARY.exists():
        print("evaluation: no rule engine; run scripts/tools/build_rule_engine.sh, which needs Go", file=sys.stderr)
        return 2
    files = rule_files(options.rules)
    costs = [_cost(ranks, options.seconds, files, options.collection) for ranks in options.ranks]
    print(table(costs))
    rules = costs[-1].rules
    print(f"\nBy group, for 15 s and {options.ranks[-1]:,} ranks:\n")
    print(_table((each["group"], each) for each in rules))
    if options.top:
        print()
        names = ((" ".join((each["rule"], *each.get("labels", {}).values())), each) for each in rules)
        print(_table(names, options.top))
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in costs]) + "\n", encoding="utf-8")
    if options.document:
        text = options.document.read_text(encoding="utf-8")
        options.document.write_text(between(text, BEGIN, END, table(costs)), encoding="utf-8")
    if options.picture:
        options.picture.write_text(picture(costs), encoding="utf-8")
    return 0


def table(costs: list[Cost]) -> str:
    """Return a row for each number of ranks."""
    columns = (
        "ranks", "series", "with rules", "without", "rules, for 15 s", "and 1,000 ranks", "allocated", "longest cycle",
        "late",
    )  # fmt: skip
    rows = [
        (
            f"{cost.ranks:,}",
            f"{cost.series:,}",
            f"{cost.with_rules:.1f} s",
            f"{cost.without:.1f} s",
            f"{cost.each:.3f} s",
            f"{1000 * cost.each / cost.ranks:.3f} s",
            f"{cost.allocated / _MEGABYTE:.1f} MB",
            f"{cost.longest_cycle:.2f} s",
            cost.late,
        )
        for cost in costs
    ]
    return printed(columns, rows, align="r")


def picture(costs: list[Cost]) -> str:
    """Return how rules and storage grow with the ranks, in seconds of processor time for 15 seconds."""
    return growth(
        [cost.ranks for cost in costs],
        {
            "rules, seconds in 15": [cost.each for cost in costs],
            "storing, seconds in 15": [cost.without * INTERVAL / cost.seconds for cost in costs],
        },
    )


def _cost(ranks: int, seconds: float, files: list[Path], collection: int) -> Cost:
    names = read_by_rules(files)

    def play(chosen: list[Path]) -> Result:
        played = [(each, seconds) for each in targets(ranks, names)]
        return evaluate(played, 1, files=chosen, horizons={}, collection=collection)

    loaded, bare = play(files), play([])
    for name, error in loaded.failed.items():
        print(f"evaluation: {name} failed: {error}", file=sys.stderr)
    used, stored = loaded.cost["process_seconds"], bare.cost["process_seconds"]
    return Cost(
        ranks,
        seconds,
        loaded.series,
        used,
        stored,
        (used - stored) * INTERVAL / seconds,
        sum(_share(rule, "allocated_bytes") for rule in loaded.cost["rules"]),
        loaded.cost["longest_cycle_seconds"],
        loaded.cost["late_evaluations"],
        loaded.cost["rules"],
    )


def _share(rule: dict[str, Any], of: str) -> float:
    """Return how much of something a rule takes in 15 seconds, on average."""
    return rule[of] / max(rule["evaluations"], 1) * INTERVAL / rule["interval"]


def _table(rules: Iterable[tuple[str, dict[str, Any]]], most: int | None = None) -> str:
    """Return a row for each name and interval, the dearest first."""
    sums: dict[tuple[str, float], tuple[float, float]] = {}
    for name, rule in rules:
        key = name, rule["interval"]
        seconds, allocated = sums.get(key, (0.0, 0.0))
        sums[key] = seconds + _share(rule, "seconds"), allocated + _share(rule, "allocated_bytes")
    rows = [
        (name, f"{every:.0f} s", f"{seconds:.4f} s", f"{allocated / _MEGABYTE:.1f} MB")
        for (name, every), (seconds, allocated) in sorted(sums.items(), key=lambda row: -row[1][0])
    ]
    return printed(("name", "every", "takes", "allocates"), rows[:most])


if __name__ == "__main__":
    sys.exit(main())
