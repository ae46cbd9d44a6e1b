"""What each clause of the rules is worth: without it, the same runs are judged once more.

python -m lab.evaluation.ablation --seeds 111 112 113 --sizes 2 4 8 --scenarios slow_data healthy --json ablation.json
python -m lab.evaluation.ablation --seeds 111 --without few_steps hiccup

clauses.yaml names the clauses. All of them are judged in one pass: whatever depends on a clause is evaluated beside the
shipped rules once more for each, under names of its own, and reads the rest of the pack.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from lab.evaluation.__main__ import all_batches
from lab.evaluation.engine import rule_files, run
from lab.evaluation.model.job import Case
from lab.evaluation.plan import SIZES
from lab.evaluation.scenarios import ALL, SCENARIOS
from lab.evaluation.score import Record, record, summary

CLAUSES = Path(__file__).with_name("clauses.yaml")
#: A clause that moves no figure by more than this is not needed for the figures.
LIMIT = 0.002
#: Between an alert's name and the number of the clause without which it fired.
_MARK = "@"
#: What an expression may read: a threshold with its name, any other series, and words that are none.
_NAMES = re.compile(r'(?:run:)?laggard_threshold(?::value)?\{name="\w+"\}|[a-zA-Z_]\w*(?::\w+)*')
_THRESHOLDS = ("laggard_threshold", "run:laggard_threshold:value")

Rule = dict[str, Any]


@dataclass(frozen=True)
class Clause:
    """A named step of a verdict, or a text in the expression of one."""

    name: str
    #: The rule's name, of a recorded series or an alert.
    rule: str
    #: Labels that tell it from others of the same name.
    labels: dict[str, str] = field(default_factory=dict[str, str])
    #: What goes, and what takes its place; without a text the whole rule goes.
    text: str = ""
    instead: str = ""

    def without(self, rule: Rule) -> Rule | None:
        """Return what is left of its rule.

        Raises:
            ValueError: if the text is not there, or is there more than once.
        """
        if not self.text:
            return {**rule, "expr": self.instead} if self.instead else None
        before, text = _plain(rule["expr"]), _plain(self.text)
        if before.count(text) != 1:
            raise ValueError(f"clause {self.name}: {self.rule} has {text!r} {before.count(text)} times, not once")
        return {**rule, "expr": before.replace(text, _plain(self.instead))}

    def among(self, rules: Collection[Rule]) -> Rule:
        """Return its rule, the one with these labels and no others first.

        Raises:
            ValueError: if there is none, or there are several.
        """
        named = [each for each in rules if _name(each) == self.rule and self.labels.items() <= _labels(each).items()]
        found = [each for each in named if _labels(each) == self.labels] or named
        if len(found) != 1:
            raise ValueError(f"clause {self.name}: there are {len(found)} rules {self.rule} {self.labels}, not one")
        return found[0]


def clauses(path: Path = CLAUSES) -> list[Clause]:
    """Return the clauses of a file."""
    return [Clause(name, **given) for name, given in yaml.safe_load(path.read_text(encoding="utf-8")).items()]


def _plain(expression: str) -> str:
    """Return an expression, or part of one, without comments, line breaks and what they leave beside parentheses."""
    line = " ".join(re.sub(r"#.*", "", expression).split())
    return line.replace("( ", "(").replace(" )", ")")


def _name(rule: Rule) -> str:
    return str(rule.get("record") or rule["alert"])


def _labels(rule: Rule) -> dict[str, str]:
    return cast("dict[str, str]", rule.get("labels", {}))


def _series(rule: Rule) -> str:
    """Return how others select what a rule records: by its name; a threshold by its label too."""
    name = _name(rule)
    return f'{name}{{name="{_labels(rule)["name"]}"}}' if name in _THRESHOLDS else name


@cache
def _reads(expression: str) -> frozenset[str]:
    return frozenset(
        re.findall(r'(?:run:)?laggard_threshold(?::value)?\{name="\w+"\}|[a-zA-Z_]\w*(?::\w+)*', expression)
    )


def affected(series: str, rules: Collection[Rule]) -> set[str]:
    """Return what rests on a series, itself included: recorded series and alerts."""
    found, before = {series}, 0
    while len(found) > before:
        before = len(found)
        found |= {_series(each) for each in rules if _reads(_plain(each["expr"])) & found}
    return found


def needed(series: Iterable[str], rules: Collection[Rule]) -> set[str]:
    """Return what some series are made of, themselves included."""
    found, before = set(series), 0
    while len(found) > before:
        before = len(found)
        found |= {name for each in rules if _series(each) in found for name in _reads(_plain(each["expr"]))}
    return found


def rules_without(
    groups: list[dict[str, Any]], given: list[Clause], judged: Collection[str] = ALL
) -> tuple[list[dict[str, Any]], list[set[str]]]:
    """Return the groups with what rests on each clause beside it once more, without the clause; and of each the alerts.

    Of the pack only that is left which leads to an alert that is judged and that some clause may move.
    """
    rules = [each for group in groups for each in group["rules"]]
    gone = [clause.among(rules) for clause in given]
    leading = needed(judged, rules)
    moved = [affected(_series(each), rules) & leading for each in gone]
    alerts = [each & set(judged) for each in moved]
    wanted = needed(set[str]().union(*alerts), rules)
    made: list[dict[str, Any]] = []
    for group in groups:
        kept: list[Rule] = []
        for rule in group["rules"]:
            if _series(rule) not in wanted:
                continue
            kept.append({name: value for name, value in rule.items() if name != "annotations"})
            for number, (clause, own, changed) in enumerate(zip(given, gone, moved, strict=True)):
                if _series(rule) in changed and (left := clause.without(rule) if rule is own else rule):
                    kept.append(_renamed(left, number, changed))
        made.append({**group, "rules": kept})
    return [group for group in made if group["rules"]], alerts


def _renamed(rule: Rule, number: int, changed: set[str]) -> Rule:
    """Return a rule under a name of its own that reads what is changed under such names."""
    expression = _plain(rule["expr"])
    for series in changed:
        name, brace, rest = series.partition("{")
        expression = re.sub(
            rf"(?<![\w:]){re.escape(series)}(?![\w:])" if not brace else rf"(?<![\w:]){re.escape(series)}",
            f"{name}_without_{number}{brace}{rest}", expression,
        )  # fmt: skip
    if "alert" in rule:
        left = {name: value for name, value in rule.items() if name != "annotations"}
        return {**left, "alert": f"{rule['alert']}{_MARK}{number}", "expr": expression}
    return {**rule, "record": f"{rule['record']}_without_{number}", "expr": expression}


def groups_of(folder: Path | None = None) -> list[dict[str, Any]]:
    """Return all groups of the rule files."""
    return [
        group for path in rule_files(folder) for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]


def play(batch: tuple[list[Case], int], path: Path, alerts: list[set[str]]) -> list[tuple[int, Record]]:
    """Return the records of a batch: with all clauses under -1, without each under its number.

    Args:
        batch: cases, and their seed.
        path: the rules that :func:`rules_without` made.
        alerts: for each clause the alerts that it may move.
    """
    cases, seed = batch
    result = run([case.job for case in cases], seed, files=[path])
    if result.failed:
        raise RuntimeError(f"rules failed: {result.failed}")
    fired = result.fired
    records: list[tuple[int, Record]] = []
    for number in range(-1, len(alerts)):
        own = [each for each in fired if _MARK not in each.alert and (number < 0 or each.alert not in alerts[number])]
        own += [
            replace(each, alert=each.alert.partition(_MARK)[0])
            for each in fired
            if each.alert.partition(_MARK)[2] == str(number)
        ]
        records += [(number, record(case, own)) for case in cases]
    return records


def figures(records: list[Record], judged: Collection[str]) -> dict[str, float]:
    """Return what is judged: of each alert precision, recall and right phases; healthy runs, and times to detect."""
    found = summary(records)
    figures: dict[str, float] = {}
    for alert in sorted(found["alerts"].keys() & judged):
        rates = found["alerts"][alert]
        for name in ("precision", "recall"):
            if rates[name] is not None:
                figures[f"{alert} {name}"] = rates[name]
        if rates["found"]:
            figures[f"{alert} phase"] = 1 - rates["wrong_phase"] / rates["found"]
    figures["healthy runs without an alert"] = 1 - found["healthy"]["with_alerts"] / max(found["healthy"]["runs"], 1)
    for name, times in found["targets"].items():
        figures[f"{name}, time"] = times["median"]
    return figures


def moves(with_it: dict[str, float], without: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the figures that differ by more than the limit, the most moved first; one that is not there is 0."""
    both = {name: (with_it.get(name, 0.0), without.get(name, 0.0)) for name in with_it | without}
    return {
        name: both[name]
        for name in sorted(both, key=lambda name: -abs(both[name][0] - both[name][1]))
        if abs(both[name][0] - both[name][1]) > LIMIT
    }


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    known = [each.name for each in clauses()]
    parser = argparse.ArgumentParser(prog="lab.evaluation.ablation", description="What each clause is worth.")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8], choices=SIZES, help="ranks of a run")
    parser.add_argument("--scenarios", nargs="+", choices=sorted(SCENARIOS), default=sorted(SCENARIOS), metavar="NAME")
    parser.add_argument("--without", nargs="+", choices=known, default=known, metavar="CLAUSE")
    parser.add_argument("--alerts", nargs="+", choices=sorted(ALL), default=sorted(ALL), metavar="ALERT")
    parser.add_argument("--workers", type=int, default=1, help="batches at once")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments, argparse.Namespace(step=None, no_large=True, part=(1, 1)))


def main() -> int:
    """Judge the runs with and without each clause; return 0 whatever the figures say."""
    given = options()
    chosen = [each for each in clauses() if each.name in given.without]
    groups, alerts = rules_without(groups_of(), chosen, given.alerts)
    begun, records = time.monotonic(), defaultdict[int, list[Record]](list)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(given.workers) as pool:
        path = Path(folder, "rules.yml")
        path.write_text(json.dumps({"groups": groups}), encoding="utf-8")
        for found in pool.map(play, all_batches(given), itertools.repeat(path), itertools.repeat(alerts)):
            for number, each in found:
                records[number].append(each)
            print(f"\r{len(records[-1])} runs, {time.monotonic() - begun:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    judged = set[str]().union(*alerts)
    baseline = figures(records[-1], judged)
    result = {each.name: moves(baseline, figures(records[number], judged)) for number, each in enumerate(chosen)}
    for name, change in result.items():
        print(f"{name}: {_told(change)}")
    if given.json:
        given.json.write_text(json.dumps({"figures": baseline, "without": result}, indent=1) + "\n", encoding="utf-8")
    return 0


def _told(change: dict[str, tuple[float, float]]) -> str:
    return (
        "; ".join(f"{name} {old:.3f} → {new:.3f}" for name, (old, new) in list(change.items())[:3]) or "nothing moves"
    )


if __name__ == "__main__":
    sys.exit(main())
