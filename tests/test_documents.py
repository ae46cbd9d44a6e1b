"""Documents that are made from the code, or name what is in it, are up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import laggard
from lab.benchmarks import pages
from laggard._hooks import HOOKS
from laggard.shared import environment
from laggard_cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent


def test_pages_made_from_the_code_are_up_to_date() -> None:
    """The pages that the generator writes are what it makes of the code and the rules."""
    subprocess.run([sys.executable, ROOT / "scripts" / "docs" / "generate_docs.py", "--check"], check=True)


def test_the_page_of_the_alerts_says_what_each_reads() -> None:
    """docs/rules.md has each alert with its runbook, and the thresholds that it reads, the nearest first."""
    text = (ROOT / "docs" / "rules.md").read_text()
    alerts = {path.stem for path in (ROOT / "rules" / "runbooks").glob("*.md")}
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == alerts
    assert set(re.findall(r"\(../rules/runbooks/(\w+).md\)", text)) == alerts
    section = text[text.index("### TrainingRegression\n") :].partition("\n### ")[0]
    read = "`regression_ratio = 1.05`, `persistence_share = 0.75`, `window_steps = 16`, `window_samples = 8`"
    assert f"| warning | 30s | {read} |" in section
    assert "```promql" in section
    assert "| `stall_seconds` | 15 | 5 | yes | No sign of progress for longer than this" in text
    assert "| `stall_steps` | 10 |  |  | as above |" in text


def test_the_page_of_the_commands_has_them_all() -> None:
    """docs/cli.md has each command and sub-command, and what each argument means."""
    text = (ROOT / "docs" / "cli.md").read_text()
    headings = re.findall(r"^## `laggard (\w+)`$", text, re.MULTILINE)
    assert headings == list(COMMANDS)
    assert "### `laggard rules render`" in text
    assert "| `--watch [SECONDS]` | ask again and again until Ctrl-C (default every 5 s) |" in text
    assert "| `--format prometheus, operator, mimir, jsonnet` |" in text


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


def test_what_is_stated_of_the_overhead_was_measured() -> None:
    """The page of the benchmarks, the README and the comparison state the figures of docs/benchmarks.json."""
    found = json.loads((ROOT / "docs" / "benchmarks.json").read_text())
    assert (ROOT / "docs" / "benchmarks.md").read_text() == pages.page(found)
    for path, text in (("README.md", pages.summary(found)), ("docs/comparison.md", pages.beside_peers(found))):
        assert f"{pages.BEGIN}\n\n{text}\n\n{pages.END}" in (ROOT / path).read_text()


#: What somebody types who has the question.
ASKED = (
    "silence", "slack", "pagerduty", "switch off", "turn laggard off", "not judged", "not compared", "retention",
    "ports", "firewall", "another python", "conda", "jupyter", "notebook", "macos", "windows", "rocm", "amd",
    "deepspeed", "megatron", "ray", "no training run", "one gpu", "threshold", "kubernetes", "thanos", "401",
)  # fmt: skip


def test_a_question_is_found_by_its_words() -> None:
    """docs/troubleshooting.md has each in a heading, which a search ranks first; what it names is there."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    headings = "\n".join(re.findall(r"^##+ (.*)$", text, re.MULTILINE)).lower()
    assert [word for word in ASKED if not re.search(rf"\b{word}\b", headings)] == []
    commands = set(re.findall(r"`laggard (\w+)", text)) | set(re.findall(r"^laggard (\w+)", text, re.MULTILINE))
    assert commands <= COMMANDS.keys()
    assert set(re.findall(r"LAGGARD_\w+", text)) <= {name for name in vars(environment) if name.startswith("LAGGARD_")}
