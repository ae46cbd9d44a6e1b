"""Rows of tables in Markdown, for the pages that are made from the code."""

from __future__ import annotations

from collections.abc import Iterable


def row(*cells: str) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


def codes(texts: Iterable[str]) -> str:
    """Return texts as code, one after the other."""
    return ", ".join(code(text) for text in texts)
