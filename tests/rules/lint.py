"""What promtool does not see in a rule: each check yields one line for each mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import promql_parser as promql

from tests.rules.pack import Rule

#: What a rule looks back must hold this many scrapes: windows are open on one side since Prometheus 3, and one scrape
#: may fail. ``rate`` needs two samples.
SCRAPES = 4

#: They pick series; which ones changes from one evaluation to the next, so an alert must not rest on them.
_PICKING = {"topk", "bottomk", "limitk", "limit_ratio"}

_COUNTERS = {"rate", "irate", "increase"}
_OF_COUNTERS = ("_total", "_sum", "_count", "_bucket", ":total")

_COMPARISONS = {"==", "!=", ">", "<", ">=", "<=", "unless"}

#: Prometheus has base units alone.
_UNITS = {
    "ms", "milliseconds", "microseconds", "minutes", "hours", "days", "percent", "kib", "mib", "gib", "kb", "mb", "gb",
    "kilobytes", "megabytes", "gigabytes", "mhz", "ghz", "megahertz", "milliwatts", "fahrenheit",
}  # fmt: skip


def can_be_false(rule: Rule) -> Iterator[str]:
    """An alert compares something, or it would fire for whatever exists."""
    if rule.is_alert and not any(
        str(node.op) in _COMPARISONS for node in _nodes(rule.expr) if isinstance(node, promql.BinaryExpr)
    ):
        yield "compares nothing"


def windows(rule: Rule, scrape_interval: timedelta) -> Iterator[str]:
    """A window holds enough scrapes."""
    for node in _nodes(rule.expr):
        if isinstance(node, promql.MatrixSelector) and node.range < SCRAPES * scrape_interval:
            yield f"window {promql.display_duration(node.range)} holds fewer than {SCRAPES} scrapes"


def picks(rule: Rule) -> Iterator[str]:
    """In an alert, topk and its like only make the one side of a join unique."""
    if rule.is_alert:
        yield from _picks(promql.parse(rule.expr))


def _picks(node: promql.Expr) -> Iterator[str]:
    if isinstance(node, promql.AggregateExpr) and str(node.op) in _PICKING:
        yield f"rests on {node.op}, which picks other series each time"
    joined: promql.Expr | None = None
    if isinstance(node, promql.BinaryExpr) and node.modifier is not None:
        if node.modifier.card == promql.VectorMatchCardinality.ManyToOne:
            joined = node.rhs
        elif node.modifier.card == promql.VectorMatchCardinality.OneToMany:
            joined = node.lhs
    for child in _children(node):
        if child is not joined:
            yield from _picks(child)


def counters(rule: Rule) -> Iterator[str]:
    """A rate is one of a counter: of a gauge each fall would count as a restart."""
    for node in _nodes(rule.expr):
        if isinstance(node, promql.Call) and node.func.name in _COUNTERS:
            selector = node.args[0]
            name = selector.vector_selector.name if isinstance(selector, promql.MatrixSelector) else None
            if name is None or not name.endswith(_OF_COUNTERS):
                yield f"{node.func.name} of {name}, which is no counter"


def units(rule: Rule) -> Iterator[str]:
    """A recorded series is in base units, and says so."""
    if not rule.is_alert:
        for word in sorted(_UNITS & set(re.split("[:_]", rule.name))):
            yield f"{word} is no base unit"


def queries(rule: Rule) -> Iterator[str]:
    """Yield the queries in a rule's annotations, with something in the place of each label."""
    for text in rule.annotations.values():
        for action in re.findall(r"{{-? with (.*?) -?}}", text, re.DOTALL):
            if "query" in action:
                query = re.search(r'"((?:[^"\\]|\\.)*)"', action, re.DOTALL)
                yield query[1].replace("%q", '"x"') if query else ""


def deprecated(rule: Rule, recorded: frozenset[str], version: tuple[int, ...]) -> Iterator[str]:
    """An old name is a copy of its replacement, and says until when.

    Args:
        rule: a rule of a file ``LAYER-deprecated.yml``.
        recorded: the names that the rest of the pack records.
        version: of the pack.
    """
    replacement, removal = rule.labels.get("replacement", ""), rule.labels.get("removal", "")
    if rule.is_alert:
        yield "an alert has no old name that anybody reads"
    if rule.name in recorded:
        yield f"{rule.name} is recorded elsewhere"
    if replacement not in recorded:
        yield f"replacement {replacement!r} is not recorded"
    tree = promql.parse(rule.expr)
    if not isinstance(tree, promql.VectorSelector) or tree.name != replacement or tree.matchers.matchers:
        yield "is no copy of its replacement"
    if not re.fullmatch(r"\d+\.0\.0", removal) or int(removal.split(".")[0]) <= version[0]:
        yield f"removal {removal!r} is no coming major version"


def _nodes(expr: str) -> list[promql.Expr]:
    found: list[promql.Expr] = []
    promql.walk(promql.parse(expr), found.append)
    return found


def _children(node: promql.Expr) -> tuple[promql.Expr, ...]:
    match node:
        case promql.BinaryExpr():
            return node.lhs, node.rhs
        case promql.ParenExpr() | promql.UnaryExpr() | promql.AggregateExpr():
            return (node.expr,)
        case promql.Call():
            return tuple(node.args)
        case _:
            return ()
