"""How laggard writes: errors say what must be and what is, and a reader meets no word that nobody uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Not those that are made from rules and commands, nor what was.
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("rules/**/*.md"), *ROOT.glob("deploy/**/*.md"))
    if path.name not in ("CHANGELOG.md", "rules.md")
)
MODULES = sorted(path for package in ("instrumentation", "exporter", "cli") for path in (ROOT / package).rglob("*.py"))
WORDS = re.compile(r"\b(can not|anew|alike|seldom|so many|thrice|of late|to be had)\b", re.IGNORECASE)
#: `X is no Y`, but not `there is no Y`.
DENIAL = re.compile(r"(?<!there )\b(?:is|are) (?:no|none)\b(?! longer)")
#: What a call of one of these says is read by a user.
SAYS = {"reject", "print", "debug", "info", "warning", "error", "exception", "add_argument", "add", "append", "refuse"}


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every message: of exceptions that are raised, of logs, and of what is printed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call = node.exc
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in SAYS:
            call = node
        else:
            continue
        for part in ast.walk(call):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def test_a_message_says_what_must_be() -> None:
    """Rule 5: `FLAG must be ..., got VALUE`, not `VALUE is no ...`; and rule 6."""
    found = [
        f"{module.relative_to(ROOT)}:{line}: {text}"
        for module in MODULES
        for line, text in said(ast.parse(module.read_text(encoding="utf-8")))
        if DENIAL.search(text) or WORDS.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_has_words_that_people_use(page: Path) -> None:
    """Rule 6 of every page that is written by hand."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = [f"{page.name}:{number}: {line}" for number, line in enumerate(lines, 1) if WORDS.search(line)]
    assert not found, "\n".join(found)


def test_the_check_finds_what_it_looks_for() -> None:
    """Both forms of denial and each word are found, where they are said, and what is no message is not."""
    code = 'raise ValueError(f"{x} is no URL")\nlog.warning("none of these are none of ours")\ny = "is no message"\n'
    assert [line for line, text in said(ast.parse(code)) if DENIAL.search(text)] == [1, 2]
    assert not DENIAL.search("there is no run at that time")
    assert not DENIAL.search("it is no longer here")
    assert [bool(WORDS.search(text)) for text in ("made Anew", "in so many steps", "so  many", "alikeness")] == [
        True,
        True,
        False,
        False,
    ]
