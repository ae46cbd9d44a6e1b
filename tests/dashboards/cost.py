"""What the queries of each dashboard cost a Prometheus that holds one large run.

    python -m tests.dashboards.cost --ranks 512 8192

Each panel is asked as Grafana does for the last half hour, one query after the other, twice: the second time counts,
when the blocks are in memory as the newest samples of a live server are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from evaluation import engine
from evaluation.load import targets
from evaluation.model.target import EPOCH
from tests.dashboards.queries import PANELS
from tests.dashboards.world import World, others, read_by_panels, serve

_RUN = "cost"
_SECONDS = 1800.0
_SEED = 1
_TIMEOUT = 120


def main() -> int:
    """Print a table; return the exit status."""
    parser = argparse.ArgumentParser(description="What the queries of each dashboard cost.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[512, 8192])
    parser.add_argument("--slowest", type=int, default=3, metavar="COUNT", help="panels that are named (default 3)")
    options = parser.parse_args()
    if not engine.BINARY.exists():
        print("no rule engine; run scripts/build_rule_engine.sh, which needs Go", file=sys.stderr)
        return 2
    for ranks in options.ranks:
        costs = measure(ranks)
        boards: dict[str, float] = {}
        for panel, seconds in costs.items():
            board = panel.partition(":")[0]
            boards[board] = boards.get(board, 0.0) + seconds
        print(f"\n| {ranks:,} ranks | all queries |\n|---|---:|")
        print("\n".join(f"| {board} | {seconds:.2f} s |" for board, seconds in dearest(boards)))
        print(
            "\n".join(f"{panel}: {seconds:.2f} s" for panel, seconds in dearest(costs)[: options.slowest]), flush=True
        )
    return 0


def dearest(costs: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return what costs most first."""
    return sorted(costs.items(), key=lambda cost: -cost[1])


def measure(ranks: int) -> dict[str, float]:
    """Return the seconds that the queries of each panel take, by the name of the panel."""
    files = engine.rule_files()
    names = engine.read_by_rules(files) | read_by_panels()
    scraped = targets(ranks, names)
    scraped.append(others(scraped))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = [(target, _SECONDS) for target in scraped]
        result = engine.evaluate(played, _SEED, files=files, horizons={}, blocks=folder / "blocks")
        assert not result.failed, result.failed
        with serve(folder, _TIMEOUT) as client:
            world = World(client, {_RUN: EPOCH + _SECONDS})
            costs: dict[str, float] = {}
            for _ in range(2):
                costs.clear()
                for panel in PANELS:
                    began = time.perf_counter()
                    for target in panel.targets:
                        world.answers(target, _RUN)
                    costs[str(panel)] = costs.get(str(panel), 0.0) + time.perf_counter() - began
    return costs


if __name__ == "__main__":
    sys.exit(main())
