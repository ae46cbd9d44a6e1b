"""``laggard rules``: the rule pack for a profile."""

from __future__ import annotations

import argparse
from pathlib import Path

from laggard_cli.errors import CommandError
from laggard_cli.rules.profiles import RulesError
from laggard_cli.rules.render import render


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    rendering = actions.add_parser("render", help="write the rule files of a profile", description="Write rule files.")
    rendering.epilog = "Example: laggard rules render --profile production --output /etc/prometheus/laggard"
    rendering.add_argument("--profile", default="production", help="profile of profiles.yaml (default %(default)s)")
    rendering.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the files go")
    rendering.add_argument("--runbook-base", metavar="URL", help="where the runbooks are, instead of the project's own")
    rendering.add_argument("--dashboard-base", metavar="URL", help="where the dashboards are, instead of /d/")


def run(options: argparse.Namespace) -> int:
    """Write the files; nothing is written when one of them can not be rendered."""
    links = {"runbook_url": options.runbook_base, "dashboard_url": options.dashboard_base}
    try:
        texts = render(options.profile, links={name: base for name, base in links.items() if base})
    except RulesError as error:
        raise CommandError(str(error)) from error
    folder: Path = options.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--output {folder}: {error.strerror}") from error
    print(f"{len(texts)} rule files of profile {options.profile} in {folder}")
    return 0
