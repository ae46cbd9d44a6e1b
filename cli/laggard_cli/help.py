"""``laggard help COMMAND``: what ``laggard COMMAND --help`` prints."""

from __future__ import annotations

import argparse

from laggard_cli.commands import parser as parser_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Example:\n  laggard help rules render"
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="a command, and the one below it")


def run(options: argparse.Namespace) -> int:
    """Print the help of a command, or of laggard itself."""
    words: list[str] = options.command
    parser_of(words[:1]).parse_args([*words, "--help"])
    return 0
