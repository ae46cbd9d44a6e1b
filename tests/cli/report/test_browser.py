"""A report in a real Chromium: everybody can read it, on every screen and on paper, and it loads nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard_cli.report.page import page
from tests.cli.report.runs import HOSTILE, run
from tests.support.chromium import Page, chromium

#: One process for all of them: their fixture is dear.
pytestmark = pytest.mark.xdist_group("report_page")

#: Each text whose contrast with what is behind it is below what WCAG asks (4.5, or 3 for large ones), and those of
#: marks without text (3). Fills of text in pictures are colours too.
CONTRAST = """
(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => {
    const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  let seen = 0;
  for (const node of document.querySelectorAll('body *')) {
    const style = getComputedStyle(node);
    const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const svg = node instanceof SVGElement;
    if (text && !['title', 'style'].includes(node.tagName)) {
      seen += 1;
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
      const found = ratio(parse(svg ? style.fill : style.color), behind(node));
      if (found < (large ? 3 : 4.5)) poor.push([node.tagName, node.textContent.slice(0, 30), found]);
    } else if (node.matches('.bar, .began, .limit, .outline, .line')) {
      seen += 1;
      const found = ratio(parse(node.matches('.bar') ? style.fill : style.stroke), behind(node));
      if (found < 3) poor.push([node.getAttribute('class'), found]);
    }
  }
  return { seen, poor };
})()
"""
#: All that can be used by mouse, what of it has no name, and what hangs over the edge of the window.
INTERACTIVE = "a[href], summary, [tabindex='0']"
UNNAMED = """
[...document.querySelectorAll("svg[role=img], [role=region], nav, a, summary")]
  .filter((node) => !(node.getAttribute('aria-label') || node.textContent).trim())
  .map((node) => node.outerHTML.slice(0, 80))
"""
SILENT = """
[...document.querySelectorAll("svg")]
  .filter((node) => !node.closest('[role=img], [aria-hidden=true]')).map((node) => node.outerHTML.slice(0, 80))
"""
FOCUSED = (
    "(() => { const node = document.activeElement; return node === document.body ? null : "
    f'[...document.querySelectorAll("{INTERACTIVE}")].indexOf(node); }})()'
)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Run Chromium."""
    if not shutil.which("chromium"):
        pytest.skip("no browser: apt-get install chromium")
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write reports: one usual, one whose names mean harm, one of 512 ranks."""
    folder = tmp_path_factory.mktemp("reports")
    reports = {"usual": run(), "hostile": run(name=HOSTILE), "large": run(512, 301, columns=240)}
    for name, report in reports.items():
        (folder / f"{name}.html").write_text(page(report), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in reports}


@pytest.mark.parametrize("name", ["usual", "hostile", "large"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_loads_nothing(tab: Page, files: dict[str, Path], name: str, width: int) -> None:
    """No width of window scrolls sideways; nothing is fetched but the file and its own pictures; nobody complains."""
    tab.fetched.clear()
    tab.complaints.clear()
    tab.open(files[name], width)
    for _ in range(2):
        assert tab.run("document.documentElement.scrollWidth") <= width
        # And with all that can be opened open.
        tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    others = [address for address in tab.fetched if not address.startswith("data:image/png;")]
    assert others == [files[name].as_uri()]
    assert len(tab.fetched) == 3
    assert tab.complaints == []
    assert tab.run("window.hurt") is None


def test_the_policy_lets_nothing_in(tab: Page, files: dict[str, Path], tmp_path: Path) -> None:
    """Were a script, a style or an address in it after all, the browser would refuse them."""
    text = files["usual"].read_text(encoding="utf-8")
    harm = "<script>window.hurt = 1</script><img src='http://127.0.0.1:1/x'><p style='color: red'>x</p></main>"
    (tmp_path / "harm.html").write_text(text.replace("</main>", harm), encoding="utf-8")
    tab.fetched.clear()
    tab.complaints.clear()
    tab.open(tmp_path / "harm.html")
    assert tab.run("window.hurt") is None
    refused = " ".join(tab.complaints)
    assert all(directive in refused for directive in ("script-src", "img-src", "style-src"))
    tab.complaints.clear()


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("dark", "print")])
def test_everything_can_be_read(tab: Page, files: dict[str, Path], scheme: str, media: str) -> None:
    """Every text, and every mark in a picture, has the contrast that WCAG AA asks for."""
    tab.open(files["usual"], scheme=scheme, media=media)
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found: dict[str, Any] = tab.run(CONTRAST)
    assert found["seen"] > 100
    assert found["poor"] == []


def test_the_keyboard_reaches_everything(tab: Page, files: dict[str, Path]) -> None:
    """The tabulator goes once through all that can be used, in its order, and each has a name; pictures have a text."""
    tab.open(files["usual"])
    count: int = tab.run(f'document.querySelectorAll("{INTERACTIVE}").length')
    visible: list[int] = tab.run(
        f'[...document.querySelectorAll("{INTERACTIVE}")].map((each, index) => '
        "each.checkVisibility({contentVisibilityAuto: true}) ? index : -1).filter((index) => index >= 0)"
    )
    reached: list[int | None] = []
    for _ in range(count + 1):
        tab.tab()
        reached.append(tab.run(FOCUSED))
    stopped = reached.index(None) if None in reached else len(reached)
    assert len(visible) > 12
    assert reached[:stopped] == visible
    assert tab.run(UNNAMED) == []
    assert tab.run(SILENT) == []


def test_pictures_say_what_they_show(tab: Page, files: dict[str, Path]) -> None:
    """The text beside a heat map names the culprit with its numbers, and a table has the same."""
    tab.open(files["usual"])
    labels: list[str] = tab.run("[...document.querySelectorAll('svg[role=img]')].map((each) => each.ariaLabel)")
    own = next(label for label in labels if label.startswith("Own time"))
    assert "rank 5 on llama-7b-17-node-0: 1.31 times its peers on average, at most 1.62 times its peers at" in own
    rows: list[str] = tab.run("[...document.querySelectorAll('figure tr')].map((each) => each.textContent)")
    assert any(row.startswith("rank 5llama-7b-17-node-01.05 s1.311.62") for row in rows)


def test_paper_has_it_all(tab: Page, files: dict[str, Path]) -> None:
    """Printed, nothing is cut off at the side, and what only works on a screen is left out."""
    tab.open(files["usual"], 700, media="print")
    assert tab.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.run("document.documentElement.scrollWidth") <= 700
    assert tab.run("getComputedStyle(document.querySelector('.scrolls')).overflowX") == "visible"
