"""Makes docs/cli.md from the parsers of ``laggard``."""

# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001 - argparse shows its actions nowhere else, and its own help differs between versions of Python

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

from laggard_cli.arguments import laid_out
from laggard_cli.commands import COMMANDS, parser
from tables import code, codes, row

_INTRODUCTION = """\
# Commands

Made by `scripts/docs/generate_docs.py` from the commands themselves; do not edit. `laggard COMMAND --help` says the
same, and `laggard completion` makes a shell complete it. `laggard-exporter` stands in [exporter.md](exporter.md#flags).
"""


def document() -> str:
    """Return the text of docs/cli.md."""
    return "".join([_INTRODUCTION, *_sections(parser(COMMANDS))])


def _sections(command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the sections of the sub-commands of a command."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            choices: dict[str, argparse.ArgumentParser] = cast("Any", action).choices
            for name, sub_command in choices.items():
                yield from _section(sub_command, code(f"{command.prog} {name}"))


def _section(command: argparse.ArgumentParser, title: str) -> Iterator[str]:
    level = "##" if command.prog.count(" ") == 1 else "###"
    yield f"\n{level} {title}\n\n{_sentence(command.description)}\n"
    if command.epilog:
        # Commands, in which Markdown would see marks of its own.
        yield f"\n```text\n{laid_out(command.epilog, 110)}\n```\n"
    arguments = [_argument(action, command.prog) for action in command._actions if _documented(action)]
    if arguments:
        yield f"\n{row('argument', 'meaning')}|---|---|\n"
        yield from arguments
    yield from _sections(command)


def _documented(action: argparse.Action) -> bool:
    return not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))


def _argument(action: argparse.Action, program: str) -> str:
    value = _value(action)
    if action.option_strings:
        name = codes(f"{option} {value}".strip() for option in action.option_strings)
    else:
        name = code(value)
    text = (action.help or "") % {"default": action.default, "prog": program}
    return row(name, f"{text}; required" if action.required and action.option_strings else text)


def _value(action: argparse.Action) -> str:
    """Return what stands for the value of an argument."""
    if action.nargs == 0:
        return ""
    choices: Any = action.choices
    # The many names of some lists stand in the text.
    listed = choices and not action.metavar and action.nargs is None
    name = ", ".join(map(str, choices)) if listed else str(action.metavar or action.dest.upper())
    if action.nargs == "?":
        return f"[{name}]"
    return f"{name} ..." if action.nargs in ("+", "*") else name


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())
