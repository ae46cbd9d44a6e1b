"""Pictures of the dashboards with simulated runs: ``python -m tests.dashboards.preview FOLDER [NAME...]``.

No Grafana can be had where this is built. The pictures come from a page of our own that reads the same JSON: places,
kinds of panel, units, colours and thresholds, and the answers of a real Prometheus to the panels' queries. Lines are
drawn by uPlot, as in Grafana.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboards.__main__ import FOLDER
from lab.evaluation.model.target import EPOCH
from laggard_cli.main import main as laggard
from tests.dashboards.test_schema import INSTALLED
from tests.dashboards.world import World, world
from tests.support.chromium import chromium

#: The run that each dashboard is shown with.
RUNS = {
    "laggard-fleet": "hot-8-1",
    "laggard-run": "slow_backward-8-1",
    "laggard-ranks": "slow_backward-8-1",
    "laggard-data": "input_bound-8-1",
    "laggard-communication": "bursts-8-1",
    "laggard-memory": "leaking-8-1",
    "laggard-gpu": "hot-8-1",
    "laggard-cost": "hot-8-1",
    "laggard-hang": "hang_in_data-8-1",
    "laggard-telemetry": "hot-8-1",
}
#: Pictures of reports: name, run, width and scheme of colours; and what asks for them among the names.
REPORTS = (
    ("report-straggler", "slow_backward-8-1", 1000, "light"),
    ("report-hang", "hang_in_data-8-1", 1000, "light"),
    ("report-phone", "slow_backward-8-1", 390, "dark"),
)
REPORT = "report"
WIDTH = 1600
#: Pixels of a line of the grid, and those above the first one.
LINE, HEADER = 38, 60


def page(simulated: World, uid: str) -> tuple[str, int]:
    """Return the page of a dashboard and its height in pixels."""
    board = json.loads((FOLDER / f"{uid}.json").read_text(encoding="utf-8"))
    run = RUNS[uid]
    times = simulated.times(run)
    panels = [
        {
            "panel": panel,
            "found": [each for target in panel.get("targets", []) for each in _found(simulated, target, run)],
        }
        for panel in board["panels"]
    ]
    marks = [
        {"begin": begin, "end": end, "colour": annotation["iconColor"]}
        for annotation in board["annotations"].get("list", ())
        if "target" in annotation
        for begin, end in _marks(simulated, annotation["target"], run)
    ]
    heading = {"title": f"{board['title']} ({run})", "description": board["description"]}
    data = {"board": heading, "times": times, "marks": marks}
    modules = INSTALLED / "node_modules" / "uplot" / "dist"
    text = Path(__file__).with_name("preview.html").read_text(encoding="utf-8")
    for mark, inserted in (
        ("UPLOT_CSS", (modules / "uPlot.min.css").read_text(encoding="utf-8")),
        ("UPLOT_JS", (modules / "uPlot.iife.min.js").read_text(encoding="utf-8")),
        ("DATA", json.dumps({**data, "panels": panels}).replace("</", "<\\/")),
    ):
        text = text.replace(mark, inserted, 1)
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    return text, HEADER + LINE * lines


def _found(simulated: World, target: Mapping[str, Any], run: str) -> list[dict[str, Any]]:
    """Return a query's series: name, labels, and a value for each time or none."""
    times = simulated.times(run)
    found: list[dict[str, Any]] = []
    for each in simulated.answers(target, run):
        values: dict[Any, Any] = dict(each.get("values") or dict.fromkeys(times, each.get("value", ["", ""])[1]))
        labels: dict[str, str] = each["metric"]
        name = target.get("legendFormat", "")
        for label in re.findall(r"{{(\w+)}}", name):
            name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
        numbers = [_finite(values[time]) if time in values else None for time in times]
        found.append({"name": name.strip(), "labels": labels, "values": numbers})
    return found


def _finite(value: str) -> float | None:
    """Return a number; NaN and infinite ones are gaps, as Grafana draws them."""
    return float(value) if math.isfinite(float(value)) else None


def _marks(simulated: World, target: Mapping[str, Any], run: str) -> list[tuple[float, float]]:
    """Return the times of an annotation's query, each from where a series begins to where it ends."""
    times = simulated.times(run)
    found: set[tuple[float, float]] = set()
    for each in simulated.answers(target, run):
        there = {float(time) for time, _ in each["values"]}
        for firing, group in itertools.groupby(times, there.__contains__):
            span = [*group]
            if firing:
                found.add((span[0], span[-1]))
    return sorted(found)


def picture(text: str, height: int, path: Path) -> None:
    """Let Chromium draw a page."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(text, encoding="utf-8")
        flags = ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update",
                 "disable-sync", "hide-scrollbars", f"user-data-dir={folder}/profile",
                 f"window-size={WIDTH},{height}", f"screenshot={path}", "virtual-time-budget=2000")  # fmt: skip
        subprocess.run(
            ["chromium", *(f"--{flag}" for flag in flags), source.as_uri()], check=True, capture_output=True, timeout=60
        )


def reports(simulated: World, folder: Path, scratch: Path) -> None:
    """Let Chromium draw the upper part of reports: the verdict, and the picture that bears it out."""
    with chromium(scratch) as tab:
        for name, run, width, scheme in REPORTS:
            path = scratch / f"{name}.html"
            times = ["--from", str(EPOCH - 600), "--to", f"{simulated.ends[run]:.0f}"]
            laggard(["report", "--prometheus", simulated.address, "--run", run, *times, "-o", str(path)])
            tab.open(path, width, scheme=scheme)
            below = tab.run("document.querySelectorAll('figure')[1].getBoundingClientRect().bottom")
            tab.picture(folder / f"{name}.png", int(below) + 12)


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, world(Path(scratch)) as simulated:
        for uid in [name for name in sys.argv[2:] if name != REPORT] or ([] if sys.argv[2:] else RUNS):
            picture(*page(simulated, uid), folder / f"{uid}.png")
            print(f"{uid}.png", file=sys.stderr)
        if not sys.argv[2:] or REPORT in sys.argv[2:]:
            reports(simulated, folder, Path(scratch))


if __name__ == "__main__":
    main()
