"""Every exception from the lint rules and from the types states what it leaves out, and why."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: What an exception begins with, however it is written.
MARK = re.compile(r"#\s*(?:(?:ruff\s*:\s*)?noqa|(?:type|pyright)\s*:\s*ignore|pragma\b)", re.IGNORECASE)
_EXCEPTION = (
    r"# (?:"
    r"(?:ruff: )?noqa: [A-Z]+\d+(?:, [A-Z]+\d+)*"
    r"|(?:type|pyright): ignore\[\w[\w-]*(?:, \w[\w-]*)*\]"
    r"|pragma: no cover"
    r")"
)
#: In lower case but for names such as DDP, and without a full stop.
_REASON = r"(?![A-Z][a-z])\w(?:[^#]*[^#\s.])?"
_GROUP = rf"{_EXCEPTION}(?:  {_EXCEPTION})* - {_REASON}"
#: Exceptions that stand one behind the other may share a reason, which the last of them has.
FORM = re.compile(rf"{_GROUP}(?:  {_GROUP})*")


def exceptions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line of a program that makes exceptions, and the part of its comment that does."""
    if not MARK.search(text):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (begin := MARK.search(token.string)):
            yield token.start[0], token.string[begin.start() :]


def without_reason(text: str) -> list[tuple[int, str]]:
    """Return the exceptions of a program that are not in the form."""
    return [(line, comment) for line, comment in exceptions(text) if not FORM.fullmatch(comment)]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout, which says what is tracked")
def test_each_exception_has_its_reason() -> None:
    """In all Python files of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, check=True, text=True)
    programs = {name: (ROOT / name).read_text(encoding="utf-8") for name in listed.stdout.split("\0") if name}
    assert sum(1 for text in programs.values() for _ in exceptions(text)) > 100
    assert [f"{name}:{line}: {each}" for name, text in programs.items() for line, each in without_reason(text)] == []


@pytest.mark.parametrize(
    ("comment", "good"),
    [
        ("# noqa: SLF001 - torch has no other way to ask", True),
        ("# noqa: C901, PLR0915 - one scope is the point of it", True),
        ("# noqa: ANN001 - DDP compares annotations, and takes no strings", True),
        ("# ruff: noqa: E402 - the environment comes first", True),
        ("# type: ignore[union-attr] - it has a rank", True),
        ("# pyright: ignore[reportCallIssue, reportArgumentType] - on purpose", True),
        ("# pragma: no cover - ends the process", True),
        ("# noqa: B018  # pyright: ignore[reportAttributeAccessIssue] - on purpose", True),
        ("# noqa: B018 - on purpose  # type: ignore[attr-defined] - it is not there", True),
        ("# two of them  # noqa: S101 - both are pipes", True),
        ("# no exception, noqa or not", True),
        ("# noqa", False),
        ("# noqa - on purpose", False),
        ("# noqa: SLF001", False),
        ("# noqa: SLF001 -", False),
        ("# noqa: SLF001 - ", False),
        ("# noqa: SLF001 as above", False),
        ("# noqa: SLF001  # as above", False),
        ("# noqa: SLF001 - as above  # and below", False),
        ("# noqa: SLF001 - As above", False),
        ("# noqa: SLF001 - as above.", False),
        ("# NOQA: SLF001 - as above", False),
        ("#noqa: SLF001 - as above", False),
        ("# noqa:SLF001 - as above", False),
        ("# noqa: C901,PLR0915 - as above", False),
        ("# ruff: noqa", False),
        ("# type: ignore", False),
        ("# type: ignore - it has a rank", False),
        ("# type: ignore[union-attr]", False),
        ("# pyright: ignore", False),
        ("# pyright: ignore[reportCallIssue]", False),
        ("# pragma: no cover", False),
        ("# noqa: B018  # pyright: ignore[reportAttributeAccessIssue]", False),
        ("# noqa: B018 # pyright: ignore[reportAttributeAccessIssue] - on purpose", False),
        ("# noqa: B018 - on purpose  # type: ignore[attr-defined]", False),
        ("# two of them  # noqa: S101", False),
    ],
)
def test_the_form_of_an_exception(comment: str, *, good: bool) -> None:
    """Codes, and behind them a reason; in a comment, and not in a text that looks like one."""
    found = without_reason(f"{comment}\nfirst = 1\nsecond = first  {comment}\n")
    assert [line for line, _ in found] == ([] if good else [1, 3])
    assert without_reason(f"first = {comment!r}\n") == []
