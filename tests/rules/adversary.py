"""Input in which every series is there twice for each label that it has: once with another value of that label alone.

Labels are in others' hands: a relabelling, a second target, an exporter that writes a name with dashes. A join on fewer
labels then meets two series where it must meet one, and Prometheus drops all that the rule says, of every run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import promql_parser as promql

from tests.rules.pack import Rule, selectors

#: Labels that a path adds to whatever it brings.
PATH = ("job", "instance", "replica")

_COUNTERS = ("_total", "_sum", "_count", "_bucket")


def series(
    rules: Iterable[Rule],
    labels: Mapping[str, frozenset[str]],
    recorded: frozenset[str],
    path: Collection[str] = PATH,
) -> Iterator[str]:
    """Yield each series once, in the notation of Prometheus.

    Args:
        rules: that read them; every selector of theirs finds some.
        labels: of each name.
        recorded: names that rules give, which need no input.
        path: labels that the way to the server adds.
    """
    found: set[str] = set()
    for rule in rules:
        for selector in selectors(rule.expr):
            for name in _names(selector, labels):
                if name not in recorded:
                    found.update(_variants(name, selector, {*labels[name], *path}))
    yield from sorted(found)


def values(text: str) -> str:
    """Return samples of a series: what counts grows, and all others stand, above 0."""
    return "1+15x20" if text.partition("{")[0].endswith(_COUNTERS) else "1+0x20"


def _names(selector: promql.VectorSelector, labels: Mapping[str, frozenset[str]]) -> list[str]:
    if selector.name:
        return [selector.name] if selector.name in labels else []
    (pattern,) = (each.value for each in selector.matchers.matchers if each.name == "__name__")
    return [name for name in labels if re.fullmatch(pattern, name)]


def _variants(name: str, selector: promql.VectorSelector, labels: Iterable[str]) -> Iterator[str]:
    """Yield a series that the selector finds, and for each label that it leaves open one with another value."""
    asked = {each.name: each for each in selector.matchers.matchers if each.name != "__name__"}
    base = {label: "a" for label in labels if label not in ("laggard_adapter", "le")}
    base |= {label: found for label, each in asked.items() if (found := _matching(each)) is not None}
    yield _written(name, base)
    for label in base:
        if label not in asked:
            yield _written(name, {**base, label: "b"})


def _matching(matcher: promql.Matcher) -> str | None:
    """Return a value that a matcher finds; None for no label."""
    if matcher.op == promql.MatchOp.Equal:
        return matcher.value or None
    if matcher.op == promql.MatchOp.NotEqual:
        return "a"
    choices = [*matcher.value.strip("()").split("|"), "0", "a"]
    found = (each for each in choices if bool(re.fullmatch(matcher.value, each)) is (matcher.op == promql.MatchOp.Re))
    return next(found)


def _written(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{" + ", ".join(f'{label}="{labels[label]}"' for label in sorted(labels)) + "}"
