"""One value for each rank first: what tells the series of an expression apart, and which steps need it to be no path.

A rank may reach Prometheus twice: two jobs scrape it, or a pair of servers writes into one store with a label
``replica``. Each of its series is there twice then, with other labels of the path. ``max``, ``min`` and ``group`` of
them are as with one; sums, counts, averages and quantiles are not, and a join that must find one finds two.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import promql_parser as promql

from tests.rules.pack import ALERTS, Labels, Rule, known, rules, selectors

#: Stands for all labels of the path by which a series came: job, instance, pod, replica, scope.
PATH = "the path"

#: What tells the series of an adapter from those of our own exporter is another path to the same thing.
_OF_A_PATH = frozenset({"laggard_adapter"})

#: Of two equal series they give what they give of one.
_KEEPING = {"max", "min", "group"}
_PICKING = {"topk", "bottomk"}

#: What is said of an expression whose series have labels of a path.
EACH = "gives a series for each path"

#: They are about paths: how many series one of them brings.
OF_PATHS = {"TrainingSeriesExcess"}

#: A rank, or a GPU, has one of each: two at a time are those of two incarnations.
_DETERMINED = frozenset({"training_peer_group", "gpu", "modelName"})


@dataclass(frozen=True)
class Series:
    """What is known of the series of an expression."""

    #: Labels that tell them apart: no two have the same values of all.
    key: frozenset[str] = frozenset()
    #: Who exposes them, where they have labels of a path: two pages have no path in common.
    pages: frozenset[str] = frozenset()
    #: Labels that told raw series apart and are lost: of several values one was kept.
    lost: frozenset[str] = frozenset()


_NOTHING = Series()
_COMPARING = {"==", "!=", "<", "<=", ">", ">="}


class Reading:
    """Follows through an expression what tells its series apart, and collects what a second path would change."""

    def __init__(self, recorded: Mapping[str, frozenset[str]]) -> None:
        self._recorded = recorded
        self.mistakes: list[str] = []

    def of(self, node: promql.Expr) -> Series:  # noqa: PLR0911 - a case for each kind of node
        """Return what is known of the series of an expression."""
        match node:
            case promql.VectorSelector():
                return self._selected(node)
            case promql.MatrixSelector():
                return self._selected(node.vector_selector)
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                return self.of(node.expr)
            case promql.Call():
                return self._called(node)
            case promql.AggregateExpr():
                return self._aggregated(node)
            case promql.BinaryExpr():
                return self._combined(node)
            case _:
                return _NOTHING

    def _selected(self, node: promql.VectorSelector) -> Series:
        fixed = {each.name for each in node.matchers.matchers if each.op == promql.MatchOp.Equal}
        if node.name and node.name in self._recorded:
            return Series(self._recorded[node.name] - fixed)
        if any(each.name == "__name__" and ":" in each.value for each in node.matchers.matchers):
            # By a pattern of names that rules record.
            return Series(frozenset({"__name__"}))
        labels = known().get(node.name, frozenset[str]()) if node.name else frozenset(("__name__", "training_run"))
        return Series(labels - fixed - _OF_A_PATH | {PATH}, frozenset({_page(node.name or "")}))

    def _called(self, node: promql.Call) -> Series:
        name = node.func.name
        operands = [self.of(each) for each in node.args]
        if name == "scalar" and operands[0].key:
            self._mistake(node, f"is NaN where {_names(operands[0].key)} differs")
        if name in ("scalar", "vector", "time", "absent", "absent_over_time"):
            return _NOTHING
        if name == "label_replace":
            _, target, copied, source, pattern = (getattr(each, "val", None) for each in node.args)
            key = operands[0].key
            if (copied, pattern) == ("$1", "(.+)") and source in key:
                key = key - {source} | {target}
            return replace(operands[0], key=key)
        return next((each for each in operands if each.key or each.pages), _NOTHING)

    def _aggregated(self, node: promql.AggregateExpr) -> Series:
        inner, operation = self.of(node.expr), str(node.op)
        by = frozenset(node.modifier.labels) if node.modifier else frozenset[str]()
        if node.modifier and node.modifier.type == promql.AggModifierType.Without:
            # Of each path by itself.
            return replace(inner, key=inner.key - by)
        key = by if inner.key - by else inner.key
        if operation in _PICKING:
            one = isinstance(node.param, promql.NumberLiteral) and node.param.val == 1
            if PATH in inner.key and not one:
                self._mistake(node, f"{operation} of a series once for each path")
            return replace(inner, key=key) if one else inner
        if operation in _KEEPING:
            # What an info series says of a thing does not tell it from others.
            raw = PATH in inner.key and not any(each.endswith("_info") for each in _raw_names(node))
            # A group says that something is there, of whatever kind.
            lost = inner.key - by - {PATH} if raw and operation != "group" else frozenset[str]()
            return Series(key, lost=inner.lost | lost)
        if PATH in inner.key:
            self._mistake(node, f"{operation} of a series once for each path")
        if lost := inner.lost - _DETERMINED:
            self._mistake(node, f"{operation} of one value of several: {_names(lost)}")
        if operation == "count_values" and isinstance(node.param, promql.StringLiteral) and inner.key - by:
            key |= {node.param.val}
        return Series(key, lost=inner.lost)

    def _combined(self, node: promql.BinaryExpr) -> Series:
        left, right = self.of(node.lhs), self.of(node.rhs)
        if str(node.op) == "^":
            # That it is there, as a factor.
            return replace(left, lost=frozenset())
        if _is_scalar(node.lhs) or _is_scalar(node.rhs):
            return right if _is_scalar(node.lhs) else left
        matching = node.modifier.matching if node.modifier else None
        named = frozenset(matching.labels) if matching else frozenset[str]()
        on = matching is not None and matching.type == promql.LabelModifierType.Include
        if not on and str(node.op) != "or" and not (left.pages & right.pages or left.pages == right.pages):
            self._mistake(node, "never matches: no path has both sides")
        if str(node.op) in ("and", "unless"):
            return left
        # A comparison keeps the values of its left side.
        lost = left.lost if str(node.op) in _COMPARING else left.lost | right.lost
        if str(node.op) == "or":
            either = Labels(known(), check=False)
            differ = frozenset[str]() if on else either.of(node.lhs) ^ either.of(node.rhs)
            return Series(left.key | right.key | (named if on else differ), left.pages | right.pages, lost)
        card = node.modifier.card if node.modifier else promql.VectorMatchCardinality.OneToOne
        for side, one in ((left, card != promql.VectorMatchCardinality.ManyToOne),
                          (right, card != promql.VectorMatchCardinality.OneToMany)):  # fmt: skip
            if one and (many := side.key - named if on else side.key & named):
                self._mistake(node, f"finds several on the side of one: {_names(many)} may differ")
        if card == promql.VectorMatchCardinality.OneToOne:
            key = min(left.key, right.key, key=len)
            return Series(key, frozenset() if on else left.pages, lost)
        kept = left if card == promql.VectorMatchCardinality.ManyToOne else right
        return replace(kept, lost=lost)

    def _mistake(self, node: promql.Expr, text: str) -> None:
        self.mistakes.append(f"{' '.join(str(node).split())}: {text}")


def mistakes(expr: str, recorded: Mapping[str, frozenset[str]]) -> list[str]:
    """Return what a second path of raw series would change in an expression.

    Args:
        expr: of a rule, or a query.
        recorded: names that the pack records, with the labels that tell their series apart.
    """
    reading = Reading(recorded)
    series = reading.of(promql.parse(expr))
    if PATH in series.key or series.pages:
        reading.mistakes.append(EACH)
    return reading.mistakes


def keys(pack: Iterable[Rule]) -> Mapping[str, frozenset[str]]:
    """Return the names that rules record, with the labels that tell their series apart."""
    recording: dict[str, list[Rule]] = {}
    for rule in pack:
        # What an adapter records under our names stands beside what our own exporter shows.
        if not (rule.is_alert or (rule.is_adapter and ":" not in rule.name)):
            recording.setdefault(rule.name, []).append(rule)
    expressions = {name: [promql.parse(rule.expr) for rule in each] for name, each in recording.items()}
    # Of several rules of one name, it is their labels that tell them apart.
    given = {name: {key for rule in each for key in rule.labels} for name, each in recording.items() if len(each) > 1}
    found: dict[str, frozenset[str]] = dict.fromkeys(recording, frozenset())
    moved = True
    while moved:
        moved = False
        for name, each in expressions.items():
            own = [Reading(found).of(expression).key for expression in each]
            key = frozenset().union(*own, given.get(name, ())) - {PATH}
            moved, found[name] = moved or key != found[name], key
    return found


@functools.cache
def pack_keys() -> Mapping[str, frozenset[str]]:
    """Return what the pack records, and its alerts, with the labels that tell their series apart."""
    return {**keys(rules()), **ALERTS}


def _page(name: str) -> str:
    """Return who exposes a raw series: a rank, its node exporter, or another one's."""
    if name.startswith(("training_process_", "gpu_", "host_", "laggard_exporter_")):
        return "laggard-exporter"
    return name.partition("_")[0]


def _raw_names(node: promql.Expr) -> list[str]:
    return [each.name for each in selectors(str(node)) if each.name and ":" not in each.name]


def _is_scalar(node: promql.Expr) -> bool:
    match node:
        case promql.NumberLiteral():
            return True
        case promql.ParenExpr() | promql.UnaryExpr():
            return _is_scalar(node.expr)
        case promql.Call():
            return node.func.name in ("scalar", "time")
        case promql.BinaryExpr():
            return _is_scalar(node.lhs) and _is_scalar(node.rhs)
        case _:
            return False


def _names(labels: Iterable[str]) -> str:
    return ", ".join(sorted(labels))
