"""Writes the pages, tables and quotations of docs/ that are made from the code.

metrics.md, rules.md and cli.md as a whole; tables of exporter.md and gpus.md; the files that extending.md shows.
``--check`` changes nothing and fails when one is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cli_page
import gpus_page
import rules_page
from laggard.shared import metrics, process_metrics
from laggard.shared.metrics import Metric
from laggard.shared.names import prometheus_label, prometheus_name
from laggard_exporter import flags
from laggard_exporter.collectors import COLLECTORS, FAMILIES
from laggard_exporter.conventions import SELF_FAMILIES
from laggard_exporter.ranks.state import PROCESS
from laggard_exporter.web.ranks import RANK_PAGES
from tables import code, codes, row

# A block of code that is titled with the path of a file.
_QUOTED = re.compile(r'(?P<head>^```\w+ title="(?P<path>[^"]+/[^"]+)"\n).*?^```$', re.MULTILINE | re.DOTALL)

DOCS = Path(__file__).parent.parent.parent / "docs"

_INTRODUCTION = """\
# Metrics

Made by `scripts/docs/generate_docs.py` from the tables in `instrumentation/laggard/shared/metrics.py` and
of the collectors in `exporter/laggard_exporter`; do not edit.

What a process cannot measure is absent, never 0. The step number is never a label.
"""

_TRAINING = """
## From a training process

Emitted through OpenTelemetry. Every data point carries `training.run` and `training.rank`, and `training.peer_group`
where one is set; in Prometheus the dots are underscores. A histogram's series end in `_bucket`, `_sum` and `_count`.

| OpenTelemetry | kind, unit | further attributes | Prometheus | meaning |
|---|---|---|---|---|
"""

_PROCESS = """
## From the node exporter: ranks

Read from the ranks' state files, so they are there for a rank that is stuck, stopped or dead. All carry
`training_run` and `training_rank`.

| Prometheus | kind | further labels | meaning |
|---|---|---|---|
"""

_NODE = """
## From the node exporter: {title}

| Prometheus | kind | labels | meaning |
|---|---|---|---|
"""


def document() -> str:
    """Return the text of docs/metrics.md."""
    parts = [_INTRODUCTION, _TRAINING]
    parts += [_training_row(metric) for metric in metrics.TRAINING_METRICS]
    parts.append(_PROCESS)
    for metric in process_metrics.PROCESS_METRICS:
        labels = (prometheus_label(attribute) for attribute in metric.attributes)
        parts.append(row(code(prometheus_name(metric)), metric.kind, codes(labels), metric.description))
    gpus = tuple(dict.fromkeys((*COLLECTORS["nvml"].families, *COLLECTORS["amd_smi"].families)))
    others = [family for family in FAMILIES if family not in {*gpus, *SELF_FAMILIES, *PROCESS.values()}]
    host = [family for family in others if family.name.startswith("host_")]
    ranks = [family for family in others if family.name.startswith("training_")]
    itself = [family for family in others if family not in (*host, *ranks)]
    for title, families in (
        ("ranks' processes", ranks),
        ("the host", host),
        ("GPUs", gpus),
        ("itself", (*SELF_FAMILIES, *itself, RANK_PAGES)),
    ):
        parts.append(_NODE.format(title=title))
        parts += [row(code(f.name), f.kind, codes(f.labels), f.help) for f in families]
    return "".join(parts)


def _training_row(metric: Metric) -> str:
    kind = f"{metric.kind}, {metric.unit}" if metric.unit else metric.kind
    return row(code(metric.name), kind, codes(metric.attributes), code(prometheus_name(metric)), metric.description)


def exporter_document(text: str) -> str:
    """Return the text of docs/exporter.md with its tables as they are now."""
    return _with_tables(text, flags=_flags(), collectors=_collectors())


def _with_tables(text: str, **tables: str) -> str:
    for name, table in tables.items():
        begin, end = f"<!-- {name}: made by scripts/docs/generate_docs.py -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def _flags() -> str:
    rows = [row("flag", "meaning"), "|---|---|\n"]
    parser = flags.parser({name: entry.text for name, entry in COLLECTORS.items()})
    for action in parser._actions:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - argparse shows it nowhere else
        value = f" {action.metavar}" if action.metavar else ""
        options = [option + value for option in action.option_strings]
        text = (action.help or "") % {"default": action.default, "prog": flags.PROGRAM}
        rows.append(row(codes(options), text))
    return "".join(rows)


def _collectors() -> str:
    rows = [row("collector", "what it tells", "metrics"), "|---|---|---|\n"]
    for name, entry in COLLECTORS.items():
        rows.append(row(code(name), entry.text, codes(family.name for family in entry.families)))
    return "".join(rows)


def quoting_document(text: str) -> str:
    """Return the text of a page with the files that it shows as they are now."""

    def quote(block: re.Match[str]) -> str:
        content = (DOCS.parent / block["path"]).read_text(encoding="utf-8")
        return f"{block['head']}{content}```"

    return _QUOTED.sub(quote, text)


def main() -> int:
    """Write the documents, or compare them."""
    exporter_path, extending_path, gpus_path = (DOCS / f"{name}.md" for name in ("exporter", "extending", "gpus"))
    texts = {
        DOCS / "metrics.md": document(),
        DOCS / "rules.md": rules_page.document(),
        DOCS / "cli.md": cli_page.document(),
        exporter_path: exporter_document(exporter_path.read_text(encoding="utf-8")),
        extending_path: quoting_document(extending_path.read_text(encoding="utf-8")),
        gpus_path: _with_tables(
            gpus_path.read_text(encoding="utf-8"), sources=gpus_page.sources(), amd_smi=gpus_page.amd_smi()
        ),
    }
    if sys.argv[1:] == ["--check"]:
        old = [
            path.name for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        for name in old:
            print(f"{name} is out of date: run scripts/docs/generate_docs.py", file=sys.stderr)
        return 1 if old else 0
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
