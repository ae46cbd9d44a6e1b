"""Makes docs/rules.md from the rule pack: each alert with its expression, its texts and the thresholds that it reads.

What a threshold means stands in the comment above it, and nowhere else.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from laggard_cli.rules.check import overridable
from laggard_cli.rules.profiles import load_profile
from laggard_cli.rules.render import rule_files, rules_folder
from tables import code, codes, row

_INTRODUCTION = """\
# Alerts and thresholds

Made by `scripts/docs/generate_docs.py` from the files in `rules/`; do not edit. [The guide](../rules/README.md) says
how the pack is built, how long each alert takes and how a run gets a threshold of its own.

Expressions and waits are those of the production profile. An alert reads a threshold itself or through what it reads,
the nearest first; [below](#thresholds) is what each threshold means, and why it has its value. Texts are templates that
Prometheus fills in.
"""

_THRESHOLDS = """
## Thresholds

As series: `laggard_threshold{name="NAME"}`. A run may [override](../rules/README.md#a-threshold-for-one-run) those
that say so. The fast profile has its own value where one is named.

| threshold | default | fast | for one run | meaning |
|---|---|---|---|---|
"""

_NAMED = re.compile(r'laggard_threshold(?::value)?\{name="(\w+)"')
_METRIC = re.compile(r"[a-zA-Z_:][\w:]*")
# A comment, if there is one, and the threshold below it.
_THRESHOLD = re.compile(
    r"((?:^ +#.*\n)*)^ +- record: laggard_threshold\n +labels: (\{.*\})\n +expr: vector\((.*)\)$", re.MULTILINE
)

Rule = dict[str, Any]


@dataclass(frozen=True)
class Threshold:
    """A threshold of the pack.

    Attributes:
        name: its name.
        label: what else tells it from others of that name, or nothing.
        value: its value in the production profile.
        meaning: the comment above it, or above the one before it where it has none.
    """

    name: str
    label: str
    value: str
    meaning: str


def document() -> str:
    """Return the text of docs/rules.md."""
    pack = {
        name: yaml.safe_load((rules_folder() / name).read_text(encoding="utf-8"))["groups"] for name in rule_files()
    }
    rules: list[Rule] = [rule for groups in pack.values() for group in groups for rule in group["rules"]]
    read = _thresholds_read(rules)
    defaults = _defaults()
    values = {threshold.name: threshold.value for threshold in defaults if not threshold.label}
    parts = [_INTRODUCTION]
    for file, groups in pack.items():
        alerts: dict[str, list[Rule]] = defaultdict(list)
        for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
            alerts[rule["alert"]].append(rule)
        if alerts:
            parts.append(f"\n## {code(file)}\n")
            for name, variants in alerts.items():
                used = [code(f"{name} = {values[name]}") for name in read[name] if name in values]
                parts += _alert(name, variants, used, _steps(variants, groups))
    parts += [_THRESHOLDS, *_threshold_rows(defaults)]
    return "".join(parts)


def _steps(variants: list[Rule], groups: list[Rule]) -> list[Rule]:
    """Return what the groups of an alert's variants record for it, in order: it reads them, or what it reads does."""
    found: list[Rule] = []
    for group in groups:
        rules: list[Rule] = group["rules"]
        wanted = {name for rule in rules if rule in variants for name in _METRIC.findall(rule["expr"])}
        kept: list[Rule] = []
        for rule in reversed(rules):
            if rule.get("record") in wanted:
                wanted.update(_METRIC.findall(rule["expr"]))
                kept.insert(0, rule)
        found += kept
    return found


def _step(rule: Rule) -> str:
    labels = ", ".join(f"{name}={text}" for name, text in rule.get("labels", {}).items())
    return f"# {rule['record']}{f' ({labels})' if labels else ''}\n{rule['expr'].rstrip()}"


def _alert(name: str, variants: list[Rule], used: list[str], steps: list[Rule]) -> Iterator[str]:
    first = variants[0]
    yield f"\n### {name}\n\n{first['annotations']['title']} [Runbook](../rules/runbooks/{name}.md).\n\n"
    yield row("severity", "after", "thresholds") + "|---|---|---|\n"
    severities = dict.fromkeys(variant["labels"]["severity"] for variant in variants)
    waits = dict.fromkeys(str(variant.get("for", "at once")) for variant in variants)
    yield row(" or ".join(severities), " or ".join(waits), ", ".join(used) or "none")
    yield from _folds("Expression", "promql", [variant["expr"].rstrip() for variant in variants])
    if steps:
        yield from _folds("Steps before it", "promql", ["\n\n".join(map(_step, steps))])
    for field in ("description", "recommendation"):
        texts = [variant["annotations"].get(field, "") for variant in variants]
        yield from _folds(field.capitalize(), "text", [textwrap.fill(t, 110, break_long_words=False) for t in texts])


def _folds(title: str, language: str, texts: list[str]) -> Iterator[str]:
    """Yield blocks of code that a reader opens, one for each text that differs."""
    different = [text for text in dict.fromkeys(texts) if text]
    for number, text in enumerate(different, 1):
        which = f" {number} of {len(different)}" if len(different) > 1 else ""
        summary = f"<summary>{title}{which}</summary>"
        yield f'\n<details markdown="1">\n{summary}\n\n```{language}\n{text}\n```\n\n</details>\n'


def _thresholds_read(rules: list[Rule]) -> Mapping[str, list[str]]:
    """Return the thresholds that each alert reads, by itself or through what it reads, the nearest first."""
    recorded = {rule["record"] for rule in rules if "record" in rule}
    named: dict[str, list[str]] = defaultdict(list)
    sources: dict[str, list[str]] = defaultdict(list)
    for rule in rules:
        name = rule.get("record") or rule["alert"]
        if name in ("laggard_threshold", "run:laggard_threshold:value"):
            continue
        named[name] += _NAMED.findall(rule["expr"])
        sources[name] += filter(recorded.__contains__, _METRIC.findall(rule["expr"]))
    found: dict[str, list[str]] = {}
    for name in {rule["alert"] for rule in rules if "alert" in rule}:
        reached = [name]
        # The list grows by what each name in it reads: the nearest come first.
        for source in reached:
            reached += dict.fromkeys(further for further in sources[source] if further not in reached)
        found[name] = list(dict.fromkeys(threshold for source in reached for threshold in named[source]))
    return found


def _defaults() -> list[Threshold]:
    thresholds: list[Threshold] = []
    for file in rule_files():
        text = (rules_folder() / file).read_text(encoding="utf-8")
        found = _THRESHOLD.findall(text)
        if len(found) != len(re.findall(r"record: laggard_threshold$", text, re.MULTILINE)):
            raise ValueError(
                f"{file}: a threshold is not written as the others are: record, labels in {{}}, vector(...)"
            )
        meaning = ""
        for comment, labels, value in found:
            meaning = " ".join(comment.replace("#", " ").split()) or meaning
            named: dict[str, str] = yaml.safe_load(labels)
            name = named.pop("name")
            label = ", ".join(f'{key}="{text}"' for key, text in named.items())
            thresholds.append(Threshold(name, label, value, meaning))
    return thresholds


def _threshold_rows(defaults: list[Threshold]) -> Iterator[str]:
    own = overridable()
    fast = load_profile(rules_folder(), "fast").thresholds
    before = ""
    for threshold in defaults:
        yield row(
            code(f"{threshold.name}{{{threshold.label}}}" if threshold.label else threshold.name),
            threshold.value,
            f"{fast[threshold.name]:g}" if threshold.name in fast else "",
            "yes" if threshold.name in own else "",
            "as above" if threshold.meaning == before else threshold.meaning,
        )
        before = threshold.meaning
    missing = own - {threshold.name for threshold in defaults}
    yield f"\nWithout a default, yours to record: {codes(sorted(missing))}; see [Prices](../rules/README.md#prices).\n"
