"""``laggard completion``: what makes a shell complete commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import shtab

from laggard_cli.commands import COMMANDS, parser

_SHELLS = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Examples:\n  laggard completion bash > ~/.local/share/bash-completion/completions/laggard\n"
        "  laggard completion zsh > ~/.zfunc/_laggard\n"
        "  laggard completion fish > ~/.config/fish/completions/laggard.fish\n"
        "The folder for zsh must be in its $fpath."
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads it")


def run(options: argparse.Namespace) -> int:
    """Print the shell's code."""
    whole = parser(COMMANDS)
    for action in _arguments(whole):
        if action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar == "FOLDER" else shtab.FILE
    print(shtab.complete(whole, options.shell))
    return 0


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Yield the arguments of the parser and of those below it."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        yield action
        # Of sub-commands the choices are parsers by their name.
        choices: object = vars(action)["choices"]
        if isinstance(choices, dict):
            for each in cast("dict[str, object]", choices).values():
                if isinstance(each, argparse.ArgumentParser):
                    yield from _arguments(each)
