"""Lay PromQL out in lines: what fits in one stands in one, and what binds less is broken first.

Selectors and numbers stay as they are written. A comment is no part of an expression: it belongs above its rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_STRING = r'"(?:\\.|[^"\\])*"'
_MATCHERS = rf"{{(?:{_STRING}|[^}}\"])*}}"
_SELECTOR = rf"(?:[A-Za-z_:][\w:]*(?:\s*{_MATCHERS})?|{_MATCHERS})(?:\s*\[[^\]]*\])?(?:\s+offset\s+\w+)?"
_TOKEN = re.compile(rf"\s*({_STRING}|{_SELECTOR}|\d[\d.]*(?:e[-+]?\d+)?|[<>=!]=|[-+*/%^<>(),])", re.DOTALL)
_BY = re.compile(r"(by|without|on|ignoring|group_left|group_right)$")

#: What binds less comes first.
_PRECEDENCE = (
    {"or"}, {"and", "unless"}, {"==", "!=", "<", ">", "<=", ">="}, {"+", "-"}, {"*", "/", "%"}, {"^"},
)  # fmt: skip
_INDENTATION = "  "
_LITERAL = '"-0123456789'


class LayoutError(ValueError):
    """A text that is no expression: where reading it ended."""


@dataclass(frozen=True)
class Leaf:
    """A selector, a number or a string."""

    text: str


@dataclass(frozen=True)
class Call:
    """A function, an aggregation, or parentheses alone: what stands before them, and what is in them."""

    head: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Operation:
    """Two sides, and between them an operator with what it matches by."""

    left: Node
    operator: str
    precedence: int
    right: Node


Node = Leaf | Call | Operation


def laid_out(expression: str, width: int) -> str:
    """Return an expression in lines of at most ``width`` columns, where its selectors allow.

    Raises:
        LayoutError: it is no expression, or has a comment.
    """
    return "\n".join(_lines(parse(expression), "", width))


def parse(expression: str) -> Node:
    """Return the tree of an expression.

    Raises:
        LayoutError: it is no expression, or has a comment.
    """
    reader = _Reader(expression)
    node = reader.operation(0)
    if reader.next:
        raise reader.error(f"{reader.next!r} is not expected")
    return node


class _Reader:
    """Tokens from left to right; ``next`` is the one that comes, and nothing at the end."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._at = 0
        self.next = ""
        self.take()

    def error(self, why: str) -> LayoutError:
        """Return what is wrong, with the expression that it is in."""
        return LayoutError(f"{' '.join(self._text.split())}: {why}")

    def take(self, expected: str = "") -> str:
        """Return the token, and go on to the one behind it."""
        token = self.next
        if expected and token != expected:
            raise self.error(f"{token!r} is where {expected!r} is expected")
        self.next = ""
        if self._at < len(self._text):
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                raise self.error(f"cannot read {self._text[self._at :].strip()[:40]!r}")
            self._at = found.end()
            self.next = re.sub(r"(?<={) | (?=})", "", " ".join(found[1].split()))
        return token

    def operation(self, precedence: int) -> Node:
        """Return what binds at least as much."""
        if precedence == len(_PRECEDENCE):
            return self._operand()
        node = self.operation(precedence + 1)
        while self.next in _PRECEDENCE[precedence]:
            operator = [self.take()]
            while _BY.match(self.next) or self.next == "bool":
                operator.append(self.take() if self.next == "bool" else f"{self.take()} {self._labels()}")
            node = Operation(node, " ".join(operator), precedence, self.operation(precedence + 1))
        return node

    def _operand(self) -> Node:
        if self.next == "-":
            sign = self.take()
            match self._operand():
                case Call(head, arguments):
                    return Call(sign + head, arguments)
                case Leaf(text):
                    return Leaf(sign + text)
                case Operation():
                    raise self.error("a sign stands before an operation")
        if self.next == "(":
            return Call("", self._arguments())
        head = self.take()
        if not head:
            raise self.error("it ends where an operand is expected")
        if _BY.match(self.next):
            return Call(f"{head} {self.take()} {self._labels()} ", self._arguments())
        return Call(head, self._arguments()) if self.next == "(" else Leaf(head)

    def _arguments(self) -> tuple[Node, ...]:
        self.take("(")
        arguments: list[Node] = []
        while self.next != ")":
            if not self.next:
                raise self.error("a parenthesis is not closed")
            arguments.append(self.operation(0))
            if self.next != ")":
                self.take(",")
        self.take(")")
        return tuple(arguments)

    def _labels(self) -> str:
        return f"({', '.join(_flat(label) for label in self._arguments())})"


def _flat(node: Node) -> str:
    match node:
        case Leaf(text):
            return text
        case Call(head, arguments):
            return f"{head}({', '.join(_flat(each) for each in arguments)})"
        case Operation(left, operator, _, right):
            return f"{_flat(left)} {operator} {_flat(right)}"


def _lines(node: Node, before: str, width: int, deeper: int = 0) -> list[str]:
    """Return the lines of a node, of which the first begins with what stands before it.

    Of an operation that binds more than what is around it, the right sides stand deeper.
    """
    if len(before) + len(_flat(node)) <= width:
        return [before + _flat(node)]
    match node:
        case Leaf(text):
            return [before + text]
        case Call(head, arguments):
            return _of_call(f"{before}{head}(", arguments, width)
        case Operation(left, operator, precedence, right):
            indentation = _INDENTATION * deeper
            room = width - len(indentation)
            more = isinstance(left, Operation) and left.precedence != precedence
            *above, last = _lines(left, before, width, deeper + more)
            if _continues(left, precedence, last, right):
                if len(f"{last} {operator} {_flat(right)}") <= width:
                    return [*above, f"{last} {operator} {_flat(right)}"]
                behind = _lines(right, f"{last} {operator} ", width)
                if isinstance(right, Call) and len(f"{operator} {_flat(right)}") > room and len(behind[0]) <= width:
                    return [*above, *behind]
            first = right
            while isinstance(first, Operation):
                first = first.left
            begins = f"{first.head}(" if isinstance(first, Call) else _flat(first)
            fits = len(f"{operator} {begins}") <= room and (first is right or not isinstance(first, Leaf))
            alone = len(_INDENTATION + _flat(right)) <= room or not fits
            if alone and "(" in operator and len(f"{operator} {_flat(right)}") > room:
                beneath = [operator, *(_INDENTATION + line for line in _lines(right, "", room - len(_INDENTATION)))]
            else:
                beneath = _lines(right, f"{operator} ", room, isinstance(right, Operation))
            return [*above, last, *(indentation + line for line in beneath)]


def _of_call(head: str, arguments: Sequence[Node], width: int) -> list[str]:
    """Return the lines of a call: what it calls in turn, with literals alone beside it, opens and closes with it."""
    inside = ", ".join(_flat(each) for each in arguments)
    if len(_INDENTATION + inside) <= width:
        return [head, _INDENTATION + inside, ")"]
    *before, last = arguments
    if isinstance(last, Call) and all(map(_is_literal, before)):
        *lines, end = _lines(last, head + "".join(f"{_flat(each)}, " for each in before), width)
        if lines and len(lines[0]) <= width and not end.strip(")"):
            return [*lines, f"{end})"]
    first, *behind = arguments
    if isinstance(first, Call) and behind and all(map(_is_literal, behind)) and len(_flat(first)) >= width - 2:
        *lines, end = _lines(first, head, width)
        if len(lines[0]) <= width:
            above = [*lines, end] if end.strip(")") else [*lines[:-1], lines[-1] + end]
            return [*above[:-1], f"{above[-1]},", f"{_INDENTATION}{', '.join(map(_flat, behind))})"]
    if before and all(map(_is_literal, before)):
        head, arguments = f"{head}{', '.join(map(_flat, before))},", [last]
    return [head, *(_INDENTATION + line for line in _listed(arguments, width - len(_INDENTATION))), ")"]


def _continues(left: Node, precedence: int, last: str, right: Node) -> bool:
    """Tell whether an operator goes on in the last line of its left side, behind a leaf or a closing bracket."""
    if isinstance(left, Leaf):
        return True
    closed = not last.strip(")") and (
        not isinstance(left, Operation) or (left.precedence == precedence and isinstance(left.right, Call))
    )
    return closed or (last == ")" and _is_literal(right))


def _is_literal(node: Node) -> bool:
    return isinstance(node, Leaf) and node.text[0] in _LITERAL


def _listed(arguments: Sequence[Node], width: int) -> list[str]:
    """Return the lines of arguments with their commas: literals share one, and a number alone follows an expression."""
    lines: list[str] = []
    for i, each in enumerate(arguments):
        *first, last = _lines(each, "", width - 1)
        last += "," if i < len(arguments) - 1 else ""
        alone = len(arguments) == i + 1 and _is_literal(each) and last[0] != '"'
        if i and _is_literal(each) and (alone or _is_literal(arguments[i - 1])) and len(f"{lines[-1]} {last}") <= width:
            lines[-1] += f" {last}"
        else:
            lines += [*first, last]
    return lines
