"""The documentation is a site: all pages, no broken link, nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.chromium import chromium

#: One process for all of them: their fixture is dear.
pytestmark = pytest.mark.xdist_group("site")

pytest.importorskip("material", reason="the theme of the site wants Python 3.11")

ROOT = Path(__file__).parent.parent
# What makes a browser ask another host while it shows a page.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?([^"' >]+)|<link[^>]*\shref=["']?([^"' >]+)|url\(["']?([^"')]+)"""
)


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout; not quietly, which silences the strictness too."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of this checkout."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    """Each Markdown file of the repository's front, its docs and its rules is a page at the path of the file."""
    documents = {
        path.relative_to(ROOT) for pattern in ("*.md", "docs/**/*.md", "rules/**/*.md") for path in ROOT.glob(pattern)
    }
    pages = {
        path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html") for path in documents
    }
    assert {path.relative_to(site) for path in site.rglob("*.html")} == pages | {Path("404.html")}


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    """Scripts, styles, pictures and their fonts are files of the site; the search index is too."""
    loaded = {
        "".join(found)
        for path in [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]
        for found in _LOADED.findall(path.read_text(encoding="utf-8"))
    }
    assert any(address.endswith(".js") for address in loaded)
    assert [address for address in loaded if address.startswith(("http:", "https:", "//"))] == []
    assert "straggler" in (site / "search" / "search_index.json").read_text(encoding="utf-8")


def test_a_link_to_a_file_that_is_no_page_leads_to_the_code_host(site: Path) -> None:
    """What the repository has and the site has not is linked where it can be read."""
    text = (site / "docs" / "gate.html").read_text(encoding="utf-8")
    assert 'href="https://github.com/laggard-project/laggard/blob/main/examples/gate.yml"' in text


#: Types a word into the search, as a person does.
_SEARCH = """(() => {
  const field = document.querySelector("input[name=query]")
  field.focus()
  field.value = "silence"
  field.dispatchEvent(new Event("input", {bubbles: true}))
  field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}))
})()"""
_FOUND = "Array.from(document.querySelectorAll('.md-search-result__link')).map(each => each.getAttribute('href'))"


def test_the_search_works_from_a_folder(site: Path, tmp_path: Path) -> None:
    """A browser that opened a file of the site finds the answer by the word of the question, and asks nobody."""
    if not shutil.which("chromium"):
        pytest.skip("no browser: apt-get install chromium")
    with chromium(tmp_path) as page:
        page.open(site / "docs" / "gate.html")
        page.run(_SEARCH)
        deadline = time.monotonic() + 20
        while not (found := page.run(_FOUND)):
            assert time.monotonic() < deadline, page.complaints
            time.sleep(0.1)
        assert any(link.endswith("docs/troubleshooting.html?h=silence#silence-one-run") for link in found)
        assert [address for address in page.fetched if not address.startswith(("file:", "data:", "about:"))] == []


#: To a page, a heading, a page outside of docs and a file that are not there.
BROKEN = ("missing.md", "metrics.md#no-such-heading", "../rules/runbooks/NoSuchAlert.md", "../examples/missing.yml")


def test_a_broken_link_fails(tmp_path: Path) -> None:
    """A link to what is not there ends the build, each in itself, with a message that names it."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for entry in ROOT.iterdir():
        if entry.name in ("docs", "scripts"):
            shutil.copytree(entry, checkout / entry.name)
        elif entry.name == "mkdocs.yml":
            shutil.copy(entry, checkout)
        elif not entry.name.startswith("."):
            (checkout / entry.name).symlink_to(entry)
    with (checkout / "docs" / "hang.md").open("a", encoding="utf-8") as document:
        document.writelines(f"\n[there]({link})\n" for link in BROKEN)
    done = build(checkout, tmp_path / "site")
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert {link: sum(f"'{link}'" in line for line in warnings) for link in BROKEN} == dict.fromkeys(BROKEN, 1)
    assert f"Aborted with {len(BROKEN)} warnings in strict mode" in done.stdout + done.stderr
