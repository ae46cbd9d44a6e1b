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

import psutil

from dashboards.queries import CHOSEN, PANELS
from lab.evaluation import engine
from lab.evaluation.load import targets
from lab.evaluation.model.target import EPOCH
from tests.dashboards.left_out import left_out
from tests.dashboards.world import STEP, World, read_by_panels, serve

#: Seconds that pass, and seconds of a processor that the server takes, which other work on the machine leaves alone.
Cost = tuple[float, float]
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
        print("no rule engine; run scripts/tools/build_rule_engine.sh, which needs Go", file=sys.stderr)
        return 2
    for ranks in options.ranks:
        costs = measure(ranks)
        boards: dict[str, Cost] = {}
        for panel, (wall, processor) in costs.items():
            board = panel.partition(":")[0]
            before = boards.get(board, (0.0, 0.0))
            boards[board] = before[0] + wall, before[1] + processor
        print(f"\n| {ranks:,} ranks | all queries | of a processor |\n|---|---:|---:|")
        print("\n".join(f"| {board} | {wall:.2f} s | {used:.2f} s |" for board, (wall, used) in dearest(boards)))
        print("\n".join(f"{panel}: {used:.2f} s" for panel, (_, used) in dearest(costs)[: options.slowest]), flush=True)
    return 0


def dearest(costs: Mapping[str, Cost]) -> list[tuple[str, Cost]]:
    """Return what takes most of a processor first."""
    return sorted(costs.items(), key=lambda cost: -cost[1][1])


def measure(ranks: int) -> dict[str, Cost]:
    """Return what the queries of each panel take, by the name of the panel."""
    files = engine.rule_files()
    names = engine.read_by_rules(files) | read_by_panels()
    scraped = targets(ranks, names)
    scraped += left_out(scraped)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = [(target, _SECONDS) for target in scraped]
        result = engine.evaluate(played, _SEED, files=files, horizons={}, blocks=folder / "blocks")
        assert not result.failed, result.failed
        with serve(folder, _TIMEOUT) as client:
            (server,) = psutil.Process().children()
            costs: dict[str, Cost] = {}
            for _ in range(2):
                costs.clear()
                # Anew each time, since it remembers what variables stand for.
                world = World(client, {_RUN: EPOCH + _SECONDS})
                for uid, variables in _chosen().items():
                    began = _spent(server)
                    for variable in variables:
                        world.chosen(variable, _RUN)
                    costs[f"{uid}: variables"] = _since(began, server)
                for panel in PANELS:
                    began = _spent(server)
                    for target in panel.targets:
                        world.answers(target, _RUN, max(STEP, _SECONDS / panel.json.get("maxDataPoints", 1)))
                    costs[str(panel)] = _since(began, server)
    return costs


def _spent(server: psutil.Process) -> Cost:
    used = server.cpu_times()
    return time.perf_counter(), used.user + used.system


def _since(began: Cost, server: psutil.Process) -> Cost:
    wall, processor = _spent(server)
    return wall - began[0], processor - began[1]


def _chosen() -> dict[str, set[str]]:
    """Return the variables that stand for the answer to a query, by dashboard."""
    found: dict[str, set[str]] = {}
    for panel in PANELS:
        for target in panel.targets:
            found.setdefault(panel.uid, set()).update(name for name in CHOSEN if f"${name}" in target["expr"])
    return found


if __name__ == "__main__":
    sys.exit(main())
