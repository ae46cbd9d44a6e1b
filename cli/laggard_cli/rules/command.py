"""``laggard rules``: the rule pack for a profile, and a check of a site's own thresholds."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from laggard_cli.errors import CommandError
from laggard_cli.labels import add_labels, parse_names
from laggard_cli.nearby import listed
from laggard_cli.rules.beside import alertmanager, dashboards
from laggard_cli.rules.check import mistakes, overridable
from laggard_cli.rules.formats import FORMATS
from laggard_cli.rules.profiles import RulesError
from laggard_cli.rules.render import render
from laggard_cli.terminal import printable

#: What a pack has that is rendered, and what is rendered from it has not: a checkout has both names, ``rules``.
_SOURCE = "profiles.yaml"
#: A group of the pack, in each form that is YAML; not of those that a site adds to it.
_GROUP = re.compile(r"^\s*- name: laggard-(?!optional-)", re.MULTILINE)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    rendering = actions.add_parser("render", help="write the rule files of a profile", description="Write rule files.")
    rendering.epilog = "Example:\n  laggard rules render --profile production --output /etc/prometheus/laggard"
    rendering.add_argument("--profile", default="production", help="profile of profiles.yaml (default %(default)s)")
    rendering.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the files go")
    rendering.add_argument("--runbook-base", metavar="URL", help="where the runbooks are, instead of the project's own")
    rendering.add_argument("--dashboard-base", metavar="URL", help="where the dashboards are, instead of /d/")
    rendering.add_argument(
        "--format",
        choices=FORMATS,
        default="prometheus",
        help="rule files, PrometheusRule manifests, namespaces for mimirtool, or a jsonnet mixin (default %(default)s)",
    )
    add_labels(rendering, "another name for a label, for example training_run=run_id or cluster=k8s_cluster")
    rendering.add_argument(
        "--dashboards", type=Path, metavar="FOLDER", help="write the dashboards too, with the same names of labels"
    )
    rendering.add_argument(
        "--alertmanager", type=Path, metavar="FILE", help="write Alertmanager's configuration too, with the same names"
    )
    rendering.set_defaults(action=_render)
    checking = actions.add_parser(
        "check", help="check rule files with thresholds of single runs", description="Check overrides of thresholds."
    )
    checking.epilog = "Example:\n  laggard rules check /etc/prometheus/overrides.yml"
    checking.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a rule file that records overrides")
    add_labels(checking, "another name for a label, as the rules were rendered with")
    checking.set_defaults(action=_check)


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    return options.action(options)


def _check(options: argparse.Namespace) -> int:
    """Print a line for each file that is right, and one for each mistake."""
    names, labels = overridable(), parse_names(options.label)
    found = 0
    for file in options.files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
            raise CommandError(f"{file}: {reason}") from error
        wrong = list(mistakes(text, names, labels))
        found += len(wrong)
        for mistake in wrong:
            print(printable(f"{file}: {mistake}"), file=sys.stderr)
        if not wrong:
            print(printable(f"{file}: no mistake"))
    if found:
        raise CommandError(f"{found} mistake{'s' if found > 1 else ''} in the overrides", code=1)
    return 0


def _render(options: argparse.Namespace) -> int:
    """Write the files; nothing is written when one of them cannot be rendered."""
    folder: Path = options.output
    if (folder / _SOURCE).exists():
        raise CommandError(f"--output {folder}: it is a rule pack itself ({_SOURCE}), which stays; name another folder")
    links = {"runbook_url": options.runbook_base, "dashboard_url": options.dashboard_base}
    labels = parse_names(options.label)
    try:
        texts = render(
            options.profile,
            links={name: base for name, base in links.items() if base},
            labels=labels,
            form=options.format,
        )
    except RulesError as error:
        raise CommandError(str(error)) from error
    _write("--output", folder, texts)
    print(f"{len(texts)} rule files of profile {options.profile} in {folder}")
    if left := _left_behind(folder, texts):
        print(
            printable(f"laggard rules render: remove {listed(left)} from {folder}: rules of another version or form"),
            file=sys.stderr,
        )
    if options.dashboards:
        boards = dashboards(labels)
        _write("--dashboards", options.dashboards, boards)
        print(f"{len(boards)} dashboards in {options.dashboards}")
    if options.alertmanager:
        file: Path = options.alertmanager
        _write("--alertmanager", file.parent, {file.name: alertmanager(labels)})
        print(f"Alertmanager's configuration in {file}")
    return 0


def _left_behind(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Return the files of the pack that an update has not written: a server that loads all would evaluate them too."""
    others = (path for path in sorted(folder.glob("*.y*ml")) if path.name not in texts and path.is_file())
    return [path.name for path in others if _GROUP.search(path.read_text(encoding="utf-8", errors="replace"))]


def _write(flag: str, folder: Path, texts: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{flag} {folder}: {error.strerror}") from error
