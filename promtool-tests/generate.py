"""Write the unit tests of the rules as files of promtool, from the scenarios in ``plays``.

    python promtool-tests/generate.py FOLDER [MODULE ...]    one file for each module of plays
    promtool test rules FOLDER/*.yml
    python promtool-tests/generate.py --said FOLDER          the same, with what alerts say where wording.py chose
    python promtool-tests/generate.py --second job FOLDER    the same, with every series on a second path
    python promtool-tests/generate.py --clusters FOLDER      the same, beside a cluster with runs of the same names

    python promtool-tests/generate.py --vmalert FOLDER       the same for VictoriaMetrics
    vmalert-tool unittest -files=FOLDER/*.yml

A scenario says in ten lines what the input of a few hundred series spells out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import yaml

from laggard_cli.rules.render import rule_files
from paths import NAMED, SECOND, TURNS, second
from scenario import Play, Scenario, Yaml, beside
from world import World

HERE = Path(__file__).resolve().parent
RULES = HERE.parent / "rules"

#: What alerts say when they first fire in a scenario; written by wording.py.
WORDING = HERE / "wording.yaml"

#: Module of plays to play to alert to its alerts, as promtool expects them.
Wording = Mapping[str, Mapping[str, Mapping[str, Sequence[Yaml]]]]

#: There changes() counts the first sample of a new series, so a young run's second restart is its third. And a rate
#: reaches back to the sample before its window: a rank that is scraped more rarely is compared, and what comes and goes
#: lasts somewhat longer. It is over what is there of its window: a save of a run's first minutes is a share of those.
#: There a rule sees what stands above it in its group as it was one evaluation before, so that a veto ends later, and
#: shares that add up do so but for what changed in between.
DIFFERENT_UNDER_VMALERT = (
    "goodput.adds_up",
    "pipeline.faults", "pipeline.near_misses", "pipeline.workers_that_come_and_go", "processes.restarts",
    "processes.restarts_in_containers", "processes.slow_batches", "uncompared.rarer_scrapes",
    "uncompared.too_many_to_name", "uncompared.without_an_exporter",
)  # fmt: skip


#: Seconds between two evaluations where a module's own are too many, since a rule sees the others as they were one
#: evaluation before: what it looks at in a minute is not there yet, or a stall is told before the evidence of it.
PACE_UNDER_VMALERT = {
    "everything": 15, "evidence": 15, "long_steps": 15, "patience": 5, "patterns": 15, "pipeline": 15, "recorded": 5,
    "shapes": 15, "stalled": 5, "telemetry": 15, "throttling": 15,
}  # fmt: skip


class Dumper(yaml.CSafeDumper):
    """Writes labels and annotations that two tests share twice, without anchors."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is yaml's
        """Write everything out."""
        return True


def document(
    module: str,
    wording: Wording,
    *,
    only: Sequence[Play] = (),
    vmalert: bool = False,
    path: str = "",
    clusters: bool = False,
) -> str:
    """Return a promtool file that plays the scenarios of a module of ``plays``, or some of them.

    A module may say with which families of rules, beside the core; without a word it plays with all of them. Where the
    groups of its alerts take their time, it may say as well every how many seconds they are evaluated.
    With a path every series is there twice, and the same is expected (``paths``). With clusters another cluster has
    runs of the same names, to which other things happen, and of each the same is expected as without the other.
    For vmalert-tool without the wording of annotations, which is Prometheus' templates and tested there.
    """
    content = importlib.import_module(f"plays.{module}")
    plays = tuple(
        play
        for play in only or _plays(module)
        if not vmalert or f"{module}.{play.__name__}" not in DIFFERENT_UNDER_VMALERT
    )
    families: tuple[str, ...] | None = getattr(content, "FAMILIES", None)
    worded = wording.get(module, {})
    every: int = getattr(content, "EVERY", _played(plays[0]).world.tick)
    if vmalert:
        every = PACE_UNDER_VMALERT.get(module, every)
    apart = [play for play in plays if only or play.__name__ in worded or _played(play).is_apart]
    here = "" if clusters else None
    tests = [
        _played(play).test(_name(play), worded.get(play.__name__), second=second(path, play.__name__), cluster=here)
        for play in apart
    ]
    if clusters:
        tests = [
            beside(test, _played(other).test(_name(play), worded.get(play.__name__), cluster=NAMED))
            for test, play, other in zip(tests, apart, _others(apart), strict=True)
        ]
    for plays_of_one in _clusters([play for play in plays if play not in apart]):
        test = _together(plays_of_one, plays_of_one, path, here)
        tests.append(beside(test, _together(plays_of_one, _others(plays_of_one), "", NAMED)) if clusters else test)
    for test in tests if vmalert else ():
        test.pop("alert_rule_test", None)
        asked = cast("list[Yaml]", test.pop("promql_expr_test"))
        # There round() keeps the name of a series.
        test["metricsql_expr_test"] = [
            {**each, "expr": str(each["expr"]).replace("round(", "0 + round(", 1)} for each in asked
        ]
    # In the order of the layers: a verdict needs one evaluation at most.
    files = [name for name in rule_files(RULES) if families is None or _family(name) in ("", *families)]
    optional = [f"{name}.yml" for name in families or () if name.startswith("optional/")]
    adapters = [name for name in optional if name.startswith("optional/adapter-")]
    files = [*adapters, *files, *(name for name in optional if name not in adapters)]
    groups = [group for name in files for group in _groups(name)]
    file: Yaml = {
        "rule_files": [str(RULES / name) for name in files],
        "evaluation_interval": f"{every}s",
        "group_eval_order": groups,
        "tests": tests,
    }
    return yaml.dump(file, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


def _clusters(plays: Sequence[Play]) -> list[list[Play]]:
    """Return who is played side by side: scenarios with one interval, the longest four times as long as the shortest.

    What has ended costs on while others go on.
    """
    clusters: list[list[Play]] = []
    shortest: World | None = None
    for play in sorted(plays, key=lambda play: (_played(play).world.tick, _played(play).world.now)):
        world = _played(play).world
        if shortest is None or world.tick != shortest.tick or world.now > 4 * shortest.now:
            clusters.append([])
            shortest = world
        clusters[-1].append(play)
    return clusters


def _others(plays: Sequence[Play]) -> list[Play]:
    """Return for each play what happens in the other cluster under the same names: another play where there is one."""
    others = list(plays)
    for tick in {_played(play).world.tick for play in plays}:
        found = [
            number
            for number, play in enumerate(plays)
            if _played(play).world.tick == tick and not _played(play).is_everywhere
        ]
        for number, following in zip(found, found[1:] + found[:1], strict=True):
            others[number] = plays[following]
    return others


def _together(places: Sequence[Play], plays: Sequence[Play], path: str, cluster: str | None) -> Yaml:
    """Return a test of all scenarios side by side, each with runs and hosts of its own: those of its place.

    An evaluation's time goes to the rules as much as to the series, so twenty scenarios in one cluster take less than
    half of the time of twenty clusters.
    """
    tests = [
        _played(play).test(_name(play), place=place.__name__, second=second(path, play.__name__), cluster=cluster)
        for place, play in zip(places, plays, strict=True)
    ]
    lists: tuple[str, ...] = ("input_series", "promql_expr_test")
    return {
        "name": " | ".join(place.__name__ for place in places),
        "interval": tests[0]["interval"],
        **{key: [entry for test in tests for entry in cast("list[Yaml]", test[key])] for key in lists},
    }


def _plays(module: str) -> tuple[Play, ...]:
    return importlib.import_module(f"plays.{module}").PLAYS


def _name(play: Play) -> str:
    return f"{play.__name__}: {(play.__doc__ or '').split(chr(10), 1)[0]}"


@cache
def _played(play: Play) -> Scenario:
    """Play a scenario once, whatever is written of it."""
    return play()


@cache
def _groups(name: str) -> list[str]:
    """Return the names of a rule file's groups."""
    return [group["name"] for group in yaml.load((RULES / name).read_text(), Loader=yaml.CSafeLoader)["groups"]]


def _family(name: str) -> str:
    return name.removesuffix(".yml").partition("-")[2]


def main() -> int:
    """Write the files; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the unit tests of the rules.")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("modules", nargs="*", help="of plays, in place of all of them")
    parser.add_argument(
        "--second", choices=[*sorted(SECOND), TURNS], default="", help="path by which every series comes as well"
    )
    parser.add_argument("--clusters", action="store_true", help="beside another cluster with runs of the same names")
    parser.add_argument("--vmalert", action="store_true", help="for vmalert-tool instead of promtool")
    parser.add_argument(
        "--said", action="store_true", help="with what alerts say, in the scenarios whose wording is written down"
    )
    options = parser.parse_args()
    if options.said and (options.second or options.clusters or options.vmalert):
        parser.error("--said must stand alone: words are those of one path, one cluster and Prometheus")
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    wording: Wording = yaml.load(WORDING.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) if options.said else {}
    for module in options.modules or sorted(path.stem for path in (HERE / "plays").glob("*.py")):
        text = document(module, wording, vmalert=options.vmalert, path=options.second, clusters=options.clusters)
        (folder / f"{module}.yml").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
