"""Annotations of an alert at a time in the past.

Prometheus keeps which alert fired when, and not what it said. Its templates say it again when they are given the labels
and the value of that time: they are Go's, of which this knows what annotations of alerts use.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from laggard_cli.past.functions import FUNCTIONS, fields, text
from laggard_cli.prometheus import Sample

Query = Callable[[str], Sequence[Sample]]
"""Answers an expression at the time in question."""

_ACTION = re.compile(r"{{(-?)(.*?)(-?)}}", re.DOTALL)
_TOKEN = re.compile(r'\s*(:=|"(?:\\.|[^"\\])*"|[|(),]|\$\w*|(?:\.\w+)+|\.|-?\d+(?:\.\d+)?|\w+)')


class TemplateError(ValueError):
    """A template that cannot be read, or says something that is not known here."""


class _Tokens:
    """What is left of an action."""

    def __init__(self, text: str) -> None:
        self.items: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise TemplateError(f"{text.strip()!r} cannot be read")
            self.items.append(match[1])
            position = match.end()

    def names(self) -> list[str]:
        """Take the variables that stand before an assignment."""
        place = self.items.index(":=") if ":=" in self.items else -1
        found = [item for item in self.items[: max(0, place)] if item != ","]
        self.items = self.items[place + 1 :]
        return found

    def next(self, default: str = "") -> str:
        return self.items[0] if self.items else default

    def pop(self) -> str:
        if not self.items:
            raise TemplateError("an action ends too early")
        return self.items.pop(0)


def render(template: str, labels: Mapping[str, str], value: float, query: Query) -> str:
    """Return what a template says.

    Args:
        template: of an annotation.
        labels: of the alert.
        value: of its expression.
        query: answers what the template asks.

    Raises:
        TemplateError: the template cannot be read, or what it reads is not there.
    """
    body = _Body(_split(template), query)
    variables: dict[str, Any] = {"$labels": dict(labels), "$value": value}
    try:
        said = body.block(variables, None, run=True)[0]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise error if isinstance(error, TemplateError) else TemplateError(str(error)) from error
    if body.parts:
        raise TemplateError("an end without a beginning")
    return " ".join(said.split())


def questions(template: str, labels: Mapping[str, str]) -> list[str]:
    """Return the expressions that a template asks for first, with the labels of an alert in their places.

    Raises:
        TemplateError: the template cannot be read.
    """
    asked: list[str] = []

    def unanswered(expression: str) -> Sequence[Sample]:
        asked.append(expression)
        return []

    render(template, labels, math.nan, unanswered)
    return asked


def _split(template: str) -> list[tuple[bool, str]]:
    """Return texts and actions (marked true) in their order, with the spaces cut that a dash takes away."""
    parts: list[tuple[bool, str]] = []
    position, cut = 0, False
    for match in _ACTION.finditer(template):
        text = template[position : match.start()]
        text = text.lstrip() if cut else text
        parts.append((False, text.rstrip() if match[1] else text))
        parts.append((True, match[2].strip()))
        position, cut = match.end(), bool(match[3])
    rest = template[position:]
    parts.append((False, rest.lstrip() if cut else rest))
    return parts


class _Body:
    """What is left of a template, and how it goes on."""

    def __init__(self, parts: list[tuple[bool, str]], query: Query) -> None:
        self.parts, self._query = parts, query

    def block(self, variables: dict[str, Any], dot: Any, *, run: bool) -> tuple[str, str]:
        """Take parts up to the end of a block; return its text, if it runs, and the action that ended it."""
        said: list[str] = []
        while self.parts:
            action, content = self.parts.pop(0)
            word, rest = _first_word(content)
            if not action:
                said.append(content)
            elif word in ("end", "else"):
                return "".join(said) if run else "", content
            elif word in ("if", "with", "range"):
                said.append(self._branch(word, rest, variables, dot, run=run))
            elif run:
                said.append(text(_Evaluation(_Tokens(content), variables, dot, self._query).pipeline()))
        return "".join(said) if run else "", ""

    def _branch(self, word: str, rest: str, variables: dict[str, Any], dot: Any, *, run: bool) -> str:
        tokens = _Tokens(rest)
        names = tokens.names()
        value: Any = _Evaluation(tokens, variables, dot, self._query).pipeline() if run else None
        taken = run and bool(value)
        if word == "range" and taken:
            said, ended = self._each(names, value, variables)
        else:
            inner = {**variables, **dict.fromkeys(names, value)}
            said, ended = self.block(inner, value if word == "with" else dot, run=taken)
        if not ended.startswith("else"):
            if ended != "end":
                raise TemplateError(f"{word} without an end")
            return said
        other, rest = _first_word(ended.removeprefix("else").strip())
        if other:
            return said + self._branch(other, rest, variables, dot, run=run and not taken)
        return said + self.block(variables, dot, run=run and not taken)[0]

    def _each(self, names: list[str], items: list[Any], variables: dict[str, Any]) -> tuple[str, str]:
        """Return the text of a body for each of some items."""
        body, said, ended = list(self.parts), "", ""
        for index, item in enumerate(items):
            self.parts[:] = body
            given: list[Any] = [index, item]
            inner = {**variables, **dict(zip(names, given[-len(names) :] if names else [], strict=True))}
            once, ended = self.block(inner, item, run=True)
            said += once
        return said, ended


def _first_word(text: str) -> tuple[str, str]:
    word, _, rest = text.partition(" ")
    return word, rest


class _Evaluation:
    """Evaluates one action."""

    def __init__(self, tokens: _Tokens, variables: Mapping[str, Any], dot: Any, query: Query) -> None:
        self._tokens, self._variables, self._dot, self._query = tokens, variables, dot, query

    def pipeline(self) -> Any:
        value = self._command(())
        while self._tokens.next() == "|":
            self._tokens.pop()
            value = self._command((value,))
        return value

    def _command(self, piped: tuple[Any, ...]) -> Any:
        name = self._tokens.next()
        if name.isidentifier() and name not in ("true", "false"):
            self._tokens.pop()
            arguments: list[Any] = []
            while self._tokens.next("|") not in ("|", ")"):
                arguments.append(self._operand())
            if name == "query":
                return list(self._query(str([*arguments, *piped][0])))
            if name not in FUNCTIONS:
                raise TemplateError(f"function {name} is not known")
            return FUNCTIONS[name](*arguments, *piped)
        return self._operand()

    def _operand(self) -> Any:
        part = self._tokens.pop()
        if part == "(":
            value = self.pipeline()
            if self._tokens.pop() != ")":
                raise TemplateError("a bracket is not closed")
        elif part.startswith('"'):
            return json.loads(part, strict=False)
        elif part.startswith("$"):
            value = self._variables[part]
        elif part.startswith("."):
            return fields(self._dot, part)
        elif part in ("true", "false"):
            return part == "true"
        else:
            return float(part) if "." in part else int(part)
        if self._tokens.next().startswith(".") and len(self._tokens.next()) > 1:
            return fields(value, self._tokens.pop())
        return value
