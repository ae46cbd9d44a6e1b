"""Pieces of HTML. Every text goes through :func:`text`: names of runs, ranks and hosts come from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from laggard_cli.terminal import printable_lines


def text(content: object) -> str:
    """Return text that is nothing but text in an element, or in an attribute in double quotes."""
    return html.escape(printable_lines(str(content)))


def element(name: str, *content: str, **attributes: object) -> str:
    """Return an element with content that is HTML already.

    Args:
        name: of the element.
        content: markup, joined.
        attributes: texts; an underscore at the end is dropped, others become dashes, and ``None`` leaves one out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(content)}</{name}>"


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 1) -> str:
    """Return a table in a frame that scrolls by itself, so that the page never does.

    Args:
        caption: what it shows.
        headings: of the columns; the first one names the row.
        rows: texts.
        numbers: the first column whose cells are numbers, and stand to the right.
    """

    def cell(index: int, content: object) -> str:
        style = "number" if index >= numbers else None
        return element("td" if index else "th", text(content), class_=style, scope=None if index else "row")

    head = element(
        "tr",
        *(
            element("th", text(each), scope="col", class_="number" if index >= numbers else None)
            for index, each in enumerate(headings)
        ),
    )
    body = "".join(element("tr", *(cell(index, each) for index, each in enumerate(row))) for row in rows)
    whole = element("table", element("caption", text(caption)), element("thead", head), element("tbody", body))
    return element("div", whole, class_="scrolls", tabindex="0", role="region", aria_label=caption)


def details(summary: str, *content: str) -> str:
    """Return what is shown on demand, by mouse or keyboard."""
    return element("details", element("summary", text(summary)), *content)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names with what they stand for, which is HTML already."""
    return element(
        "dl", *(element("div", element("dt", text(name)), element("dd", content)) for name, content in pairs)
    )


def figure(title: str, caption: str, *content: str) -> str:
    """Return a picture with its name and what to see in it."""
    return element("figure", element("h3", text(title)), element("figcaption", text(caption)), *content)
