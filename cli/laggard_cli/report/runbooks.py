"""Runbooks as HTML. A page of the pack is Markdown; what it links to lies beside it, where the rule's link leads."""

from __future__ import annotations

from functools import cache
from urllib.parse import urljoin, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

#: Headings of a page stand below those of the report around it.
_DEEPER, _DEEPEST = 2, 6


def to_html(page: str, url: str) -> str:
    """Return a page without its title, which is the alert's name.

    Args:
        page: in Markdown; what looks like HTML in it stays text.
        url: of the page on the web, to which its links are relative; where there is none, they are text.
    """
    reader = _reader()
    tokens = reader.parse(page)
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        del tokens[:3]
    for token in tokens:
        if token.type.startswith("heading_"):
            token.tag = f"h{min(int(token.tag[1]) + _DEEPER, _DEEPEST)}"
        if token.children:
            token.children = _linked(token.children, url)
    return str(reader.renderer.render(tokens, reader.options, {}))


@cache
def _reader() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _linked(tokens: list[Token], url: str) -> list[Token]:
    """Return what is in a line with links that lead somewhere from wherever the report lies."""
    web = urlsplit(url).scheme in ("http", "https")
    kept: list[Token] = []
    for token in tokens:
        if token.type == "link_open":
            target = urljoin(url, str(token.attrs["href"])) if web else str(token.attrs["href"])
            if urlsplit(target).scheme not in ("http", "https"):
                continue
            token.attrs = {"href": target, "rel": "noreferrer"}
        elif token.type == "link_close" and not _open(kept):
            continue
        kept.append(token)
    return kept


def _open(tokens: list[Token]) -> bool:
    """Return whether a link has begun and not ended."""
    return sum(token.nesting for token in tokens if token.type.startswith("link_")) > 0
