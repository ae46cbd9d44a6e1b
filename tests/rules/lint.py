"""What promtool does not see in a rule: each check yields one line for each mistake."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta

import promql_parser as promql

from tests.rules.pack import CLUSTER, Labels, Rule, known

#: What is recorded once for all clusters.
_OF_ALL = {"laggard_threshold", "laggard_rules_info"}

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


def overwrites(rule: Rule) -> Iterator[str]:
    """A rule sets no label that its series have already: vmalert keeps that as well, as ``exported_`` and its name."""
    for label in sorted(Labels(known()).of(promql.parse(rule.expr)) & set(rule.labels)):
        yield f"overwrites {label}"


def unknown_labels(rule: Rule) -> Iterator[str]:
    """What an alert says names labels that its expression has: those that the rule adds are not there yet."""
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values())))
    for label in sorted(named - Labels(known()).of(promql.parse(rule.expr))):
        yield f"says {label}, which its expression has not"


def queries(rule: Rule) -> Iterator[str]:
    """Yield the queries in a rule's annotations, with something in the place of each label."""
    for text in rule.annotations.values():
        for action in re.findall(r"{{-? with (.*?) -?}}", text, re.DOTALL):
            if "query" in action:
                query = re.search(r'"((?:[^"\\]|\\.)*)"', action, re.DOTALL)
                yield query[1].replace("%q", '"x"') if query else ""


def clusters(rule: Rule) -> Iterator[str]:
    """Yield where clusters meet: what is kept or matched names the cluster, but of what is one for all of them."""
    for node in _nodes(rule.expr):
        if _meets(node):
            yield f"clusters meet in {node}"
    for query in queries(rule):
        if f"{CLUSTER}=" not in query and _names(promql.parse(query)) - _OF_ALL:
            yield f"clusters meet in {query}"


def _meets(node: promql.Expr) -> bool:
    match node:
        case promql.AggregateExpr():
            by = node.modifier
            apart = by is not None and (by.type == promql.AggModifierType.Without or _in_one(by.labels))
        case promql.Call():
            apart = node.func.name not in ("scalar", "absent")
        case promql.BinaryExpr() if node.modifier and (matching := node.modifier.matching):
            apart = matching.type != promql.LabelModifierType.Include or _in_one(matching.labels)
            # The right side may be for all.
            node = node.rhs
        case _:
            apart = True
    return not apart and bool(_names(node) - _OF_ALL)


def _in_one(labels: Iterable[str]) -> bool:
    """Return whether these labels tell clusters apart; tables of ours are the same in each."""
    return CLUSTER in labels or (bool(list(labels)) and set(labels) <= {"name", "gpu"})


def _names(node: promql.Expr) -> frozenset[str]:
    return frozenset(each.name or "" for each in _nodes(str(node)) if isinstance(each, promql.VectorSelector))


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


def divides_by_zero(rule: Rule, positive: frozenset[str]) -> Iterator[str]:
    """A division has a denominator that cannot be 0: 0/0 is NaN, and a NaN poisons every sum that it is part of.

    A mean of a histogram may be NaN where it is compared before it is recorded: no comparison holds for NaN.

    Args:
        rule: of the pack.
        positive: names that are recorded and are never 0.
    """
    yield from _divides_by_zero(promql.parse(rule.expr), positive, compared=False)


def _divides_by_zero(node: promql.Expr, positive: frozenset[str], *, compared: bool) -> Iterator[str]:
    if isinstance(node, promql.BinaryExpr):
        operation = str(node.op)
        filters = node.modifier is None or not node.modifier.return_bool
        compared = (filters and operation in (">", ">=", "<", "<=", "==")) or (compared and operation in ("/", "*"))
        if operation in ("/", "%") and not (_positive(node.rhs, positive) or (compared and _is_count(node.rhs))):
            yield f"divides by {' '.join(str(node.rhs).split())}, which may be 0: keep what is > 0"
    elif isinstance(node, promql.AggregateExpr):
        compared = compared and str(node.op) in ("min", "max")
    elif not isinstance(node, promql.ParenExpr):
        compared = False
    for child in _children(node):
        yield from _divides_by_zero(child, positive, compared=compared)


def _is_count(node: promql.Expr) -> bool:
    """Return whether this is how often a histogram was recorded to: its sum does not rise without it."""
    return (
        isinstance(node, promql.Call)
        and node.func.name in _COUNTERS
        and isinstance(node.args[0], promql.MatrixSelector)
        and (node.args[0].vector_selector.name or "").endswith("_count")
    )


def positive_names(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the names of recorded series that are never 0."""
    expressions: dict[str, list[promql.Expr]] = {}
    for rule in rules:
        if not rule.is_alert:
            expressions.setdefault(rule.name, []).append(promql.parse(rule.expr))
    found = frozenset[str]()
    while True:
        more = frozenset(name for name, each in expressions.items() if all(_positive(expr, found) for expr in each))
        if more == found:
            return found
        found = more


#: Aggregations and functions of positive values that are positive, and functions that are so of anything.
_KEEPING = {
    "sum", "avg", "min", "max", "quantile", "topk", "bottomk", "avg_over_time", "min_over_time", "max_over_time",
    "sum_over_time", "last_over_time", "quantile_over_time", "label_replace", "sqrt", "vector", "scalar",
}  # fmt: skip
_ALWAYS = {"count", "group", "time", "timestamp", "count_over_time"}


def _positive(node: promql.Expr, names: frozenset[str]) -> bool:  # noqa: PLR0911 - a case for each kind of node
    """Return whether the values of an expression are above 0, or are thresholds alone."""
    match node:
        case promql.NumberLiteral():
            return node.val > 0
        case promql.ParenExpr() | promql.SubqueryExpr():
            return _positive(node.expr, names)
        case promql.VectorSelector():
            return node.name in names
        case promql.MatrixSelector():
            return node.vector_selector.name in names
        case promql.AggregateExpr():
            return str(node.op) in _ALWAYS or (str(node.op) in _KEEPING and _positive(node.expr, names))
        case promql.Call():
            return _is_positive_call(node, names)
        case promql.BinaryExpr():
            return _is_positive_pair(node, names)
        case _:
            return False


def _is_positive_call(node: promql.Call, names: frozenset[str]) -> bool:
    if node.func.name == "clamp_min":
        return isinstance(node.args[1], promql.NumberLiteral) and node.args[1].val > 0
    series = [each for each in node.args if not isinstance(each, promql.NumberLiteral | promql.StringLiteral)]
    kept = node.func.name in _KEEPING and all(_positive(each, names) for each in series or node.args)
    return kept or node.func.name in _ALWAYS


def _is_positive_pair(node: promql.BinaryExpr, names: frozenset[str]) -> bool:
    left, right, operation = _positive(node.lhs, names), _positive(node.rhs, names), str(node.op)
    if operation in (">", ">="):
        zero = isinstance(node.rhs, promql.NumberLiteral) and node.rhs.val == 0
        filters = node.modifier is None or not node.modifier.return_bool
        return filters and (left or right or (zero and operation == ">"))
    if operation == "-":
        # One less a share that is kept below one, or a threshold.
        taken = node.rhs
        clamped = isinstance(taken, promql.Call) and taken.func.name == "clamp" and taken.args[2].val < 1
        return left and (clamped or (isinstance(taken, promql.Call) and taken.func.name == "scalar"))
    if operation in ("and", "unless", "=="):
        return left or (operation == "==" and right)
    return operation in ("or", "*", "/", "+", "^") and left and right


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
