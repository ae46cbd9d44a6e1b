"""Documents that are made from the code, or name what is in it, are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import laggard
from laggard import environment
from laggard._hooks import HOOKS

ROOT = Path(__file__).parent.parent


def test_the_list_of_metrics_is_up_to_date() -> None:
    """docs/metrics.md and the tables of docs/exporter.md are what the generator makes of the tables in the code."""
    subprocess.run([sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"], check=True)


def test_every_environment_variable_and_hook_is_documented() -> None:
    """docs/instrumentation.md names each variable and each hook, and no variable that does not exist."""
    text = (ROOT / "docs" / "instrumentation.md").read_text()
    variables = {name for name in vars(environment) if name.startswith("LAGGARD_")}
    assert set(re.findall(r"LAGGARD_\w+", text)) == variables
    row = next(line for line in text.splitlines() if "`LAGGARD_DISABLED_HOOKS`" in line)
    assert all(hook.name in row for hook in HOOKS)


def test_every_public_name_is_documented() -> None:
    """docs/instrumentation.md has each name of the package in its table, and calls none that does not exist."""
    text = (ROOT / "docs" / "instrumentation.md").read_text()
    table = text[text.index("## The API") :].partition("\n## ")[0]
    assert set(re.findall(r"laggard\.(\w+)", table)) == set(laggard.__all__)
    assert set(re.findall(r"laggard\.(\w+)\(", text)) <= set(laggard.__all__)


def test_links_between_documents_lead_somewhere() -> None:
    """A relative link in a Markdown file names a file that exists."""
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "rules").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
