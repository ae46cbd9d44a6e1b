"""Checks files in which a site gives its runs thresholds of their own: one line for each mistake.

Prometheus loads such a file whatever it says: a name with a typing error is an override of nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from promql_parser import Call, NumberLiteral

from laggard_cli.labels import in_ours
from laggard_cli.pack import read_yaml
from laggard_cli.rules.render import rule_files, rules_folder

RECORD = "laggard_threshold_override"

_GROUP_FIELDS = {"name", "interval", "limit", "labels", "query_offset", "rules"}
_RULE_FIELDS = {"record", "expr", "labels"}
_LABELS = {"name", "training_run", "cluster"}


def overridable(folder: Path | None = None) -> frozenset[str]:
    """Return the names of the thresholds that a run may override."""
    folder = folder or rules_folder()
    names: set[str] = set()
    for file in rule_files(folder):
        for group in read_yaml(folder / file)["groups"]:
            names |= {name for rule in group["rules"] for name in _READ.findall(rule["expr"])}
    return frozenset(names)


#: How rules read an override. A price has no default, and so no rule of its own.
_READ = re.compile(rf'{RECORD}\{{name="(\w+)"\}}')


def mistakes(text: str, names: frozenset[str], renamed: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield what is wrong with a file of overrides, place and remedy in one line each.

    Args:
        text: content of the file.
        names: the thresholds that may be overridden.
        renamed: label to the name that the rules were rendered with.
    """
    try:
        content: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        yield f"no YAML: {' '.join(str(error).split())}"
        return
    except RecursionError:
        yield "no rule file: its lists are nested too deeply"
        return
    if not _is_mapping(content) or not isinstance(content.get("groups"), list):
        yield "no list of groups; a rule file begins with 'groups:'"
        return
    seen: dict[tuple[str, ...], str] = {}
    for number, group in enumerate(content["groups"], 1):
        place = f"group {group.get('name', number)}" if _is_mapping(group) else f"group {number}"
        if not _is_mapping(group) or not isinstance(group.get("rules"), list):
            yield f"{place}: no list of rules"
            continue
        if "name" not in group:
            yield f"{place}: no name; Prometheus refuses the file"
        yield from _unknown(group, _GROUP_FIELDS, place)
        for position, rule in enumerate(group["rules"], 1):
            yield from _rule(rule, f"{place}, rule {position}", names, seen, renamed or {})


def _rule(
    rule: Any, place: str, names: frozenset[str], seen: dict[tuple[str, ...], str], renamed: Mapping[str, str]
) -> Iterator[str]:
    if not _is_mapping(rule) or rule.get("record") != RECORD:
        found = rule.get("record") or rule.get("alert") if _is_mapping(rule) else rule
        yield f"{place}: records {found!r}; a file of overrides records {RECORD} alone"
        return
    yield from _unknown(rule, _RULE_FIELDS, place)
    given: Any = rule.get("labels")
    if not _is_mapping(given):
        yield f"{place}: no labels; write labels: {{name: THRESHOLD, training_run: RUN}}"
        return
    labels: dict[str, Any] = in_ours({str(label): value for label, value in given.items()}, renamed)
    name, run, cluster = labels.get("name"), labels.get("training_run"), labels.get("cluster", "")
    if not isinstance(name, str) or name not in names:
        near = difflib.get_close_matches(str(name), names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(names))}"
        yield f"{place}: no threshold {name!r} that a run may override; {hint}"
        return
    if not isinstance(run, str) or not run:
        found = "no label training_run" if run is None else f"training_run is {run!r}"
        yield f"{place}: {found}; name one run, in quotes if it is a number"
    for label in sorted(labels.keys() - _LABELS):
        yield f"{place}: label {label} has no meaning here; remove it"
    if (earlier := seen.setdefault((name, str(run), str(cluster)), place)) != place:
        yield f"{place}: overrides {name} of {run} again, as {earlier} does; remove one"
    yield from _expression(rule.get("expr"), name, place)


def _expression(expr: Any, name: str, place: str) -> Iterator[str]:
    if expr is None:
        yield f"{place}: no expr; write expr: vector(NUMBER)"
        return
    try:
        tree = promql_parser.parse(str(expr))
    except ValueError as error:
        yield f"{place}: expr must be PromQL, got {expr!r}: {' '.join(str(error).split())}"
        return
    if isinstance(tree, Call) and tree.func.name == "vector":
        tree = tree.args[0]
    # What another expression will give, only Prometheus knows.
    if isinstance(tree, NumberLiteral):
        low, high, what = _range(name)
        if not low < tree.val < high:
            yield f"{place}: {name} is {tree.val:g}; {what}"


def _range(name: str) -> tuple[float, float, str]:
    """Return between which numbers a threshold lies, and in words."""
    if name.endswith("_share"):
        return 0, 1, "a share lies between 0 and 1"
    if name.endswith("_score"):
        return 1, float("inf"), "a score is a ratio above 1, as 1.2 for a fifth longer"
    return 0, float("inf"), "it must be above 0"


def _unknown(mapping: Mapping[Any, Any], fields: set[str], place: str) -> Iterator[str]:
    for field in sorted(set(map(str, mapping)) - fields):
        yield f"{place}: no field {field!r}; there are {', '.join(sorted(fields))}"


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)
