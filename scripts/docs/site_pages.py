"""Lays the pages of the site out as their files lie in the repository: a hook of MkDocs, named in mkdocs.yml.

A page outside docs/ is part of the site too, and a relative link is right in both. What a link names that is no page, a
folder or a file of the repository, is shown by the code host.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
_PAGES = ("*.md", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "docs/*.css", "docs/*.js", "rules/**/*.md")
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the files of the repository in place of those that MkDocs found, each at its path there."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in sorted(path for pattern in _PAGES for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to what is in the repository and not in the site to the code host."""

    def lead(link: re.Match[str]) -> str:
        target = Path(os.path.normpath((ROOT / page.file.src_uri).parent / link[0]))
        if not target.is_relative_to(ROOT) or not target.exists():
            return link[0]
        path = target.relative_to(ROOT).as_posix()
        if path in files.src_uris:
            return link[0]
        return f"{config.extra['repository']}/{'tree' if target.is_dir() else 'blob'}/main/{path}"

    return _LINK.sub(lead, markdown)
