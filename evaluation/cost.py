"""What the rules cost: the same samples through the engine with and without them.

    python -m evaluation.cost --ranks 100 1000 10000

Process time of storage and rules together, less that of storage alone, for each interval of 15 seconds.
"""

from __future__ import annotations

import argparse
import sys

from evaluation.engine import BINARY, INTERVAL, rule_files, run
from evaluation.model.faults import Slow
from evaluation.model.job import Job
from laggard.conventions import Phase

#: Long enough for all windows of a run with quick steps; the engine's start is in neither or both.
_SECONDS = 900.0


def main() -> int:
    """Print a table; return the exit status."""
    parser = argparse.ArgumentParser(prog="evaluation.cost", description="What the rules cost.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of virtual time (default %(default)s)")
    options = parser.parse_args()
    if not BINARY.exists():
        print("evaluation: no rule engine; run scripts/build_rule_engine.sh, which needs Go", file=sys.stderr)
        return 2
    print("| ranks | series | with rules | without | rules, for 15 s | for 15 s and 1,000 ranks | longest cycle |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for ranks in options.ranks:
        slow = Slow(begin=120, ranks=(1,), phase=Phase.FORWARD, factor=1.5)
        job = Job("cost", ranks, 0.5, faults=(slow,), seed=1, horizon=options.seconds)
        result = run([job], 1, files=rule_files())
        alone = run([job], 1, files=rule_files(), rules=False)
        used, stored = result.cost["process_seconds"], alone.cost["process_seconds"]
        each = (used - stored) / (options.seconds / INTERVAL)
        longest = result.cost["longest_cycle_seconds"]
        seconds = f"{used:.1f} s | {stored:.1f} s | {each:.3f} s | {1000 * each / ranks:.3f} s | {longest:.2f} s"
        print(f"| {ranks:,} | {result.series:,} | {seconds} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
