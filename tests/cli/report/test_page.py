"""``laggard report``: its page is HTML in which names stay text and runbooks lead somewhere."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from laggard_cli.report.page import page
from laggard_cli.report.runbooks import to_html
from tests.cli.report.runs import HOSTILE, run


class _Attributes(HTMLParser):
    """Collects elements, attributes and identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_hostile_names_stay_text() -> None:
    """A run's name can add no element and no attribute, end no style, hide nothing; and nothing may be loaded."""
    text = page(run(name=HOSTILE))
    found, plain = _Attributes(), _Attributes()
    found.feed(text)
    plain.feed(page(run()))
    assert found.elements == plain.elements
    assert not {"script", "iframe", "object", "img", "link", "form"} & set(found.elements)
    assert {name for name, _ in found.attributes} == {name for name, _ in plain.attributes}
    assert not any(name.startswith("on") or name == "style" for name, _ in found.attributes)
    assert text.count("</style>") == 1
    assert "\u202e" not in text
    assert "\x1b" not in text
    (policy,) = (value for name, value in found.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert all(
        value.startswith(("#", "data:image/png", "https://runbooks/"))
        for name, value in found.attributes
        if name in ("href", "src")
    )
    wrong = dataclasses.replace(run().told[0].problem, runbook_url="javascript:alert(1)")
    report = run()
    told = dataclasses.replace(report.told[0], problem=wrong)
    assert "javascript" not in page(dataclasses.replace(report, told=(told,)))


def test_every_runbook_is_html_that_leads_somewhere() -> None:
    """Headings, tables and commands are elements, links lead to pages beside it, and no Markdown is left."""
    elements: Counter[str] = Counter()
    for path in sorted(Path("rules/runbooks").glob("*.md")):
        made = to_html(path.read_text(), f"https://site/{path}")
        found = _Attributes()
        found.feed(made)
        elements.update(found.elements)
        assert f">{path.stem}</h" not in made
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", made, flags=re.DOTALL)
        assert not re.search(r"^#|```|\]\(|^\|", prose, re.MULTILINE), path.name
        links = [value for name, value in found.attributes if name == "href"]
        assert all(link.startswith(("https://", "http://")) for link in links)
        beside = [Path(link.removeprefix("https://site/")) for link in links if link.startswith("https://site/")]
        assert all(page.with_name(page.name.partition("#")[0]).is_file() for page in beside), links
    assert min(elements[name] for name in ("h4", "pre", "code", "a", "li", "table")) > 0
    assert not {"h1", "h2", "script", "img"} & set(elements)


@pytest.mark.parametrize("url", ["", "javascript:alert(1)", "file:///etc/passwd"])
def test_a_runbook_without_a_place_has_no_links(url: str) -> None:
    """Relative links lead nowhere from a file, and what looks like HTML is text."""
    page = "# A\n\n## B\n\n[one](B.md) and [*two*](https://here/) `x` [c](javascript:alert(1)) <script>x</script>\n"
    assert to_html(page, url) == (
        '<h4>B</h4>\n<p>one and <a href="https://here/" rel="noreferrer"><em>two</em></a> <code>x</code> '
        "[c](javascript:alert(1)) &lt;script&gt;x&lt;/script&gt;</p>\n"
    )
