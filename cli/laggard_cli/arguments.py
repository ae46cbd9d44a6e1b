"""The parser of every command: help where nothing is given, and one line that says what was meant by a wrong word."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

from laggard_cli.errors import BAD_INPUT
from laggard_cli.nearby import did_you_mean
from laggard_cli.terminal import printable

#: How argparse says that an argument is missing.
_MISSING = "the following arguments are required: "
#: What :meth:`argparse.ArgumentParser.add_subparsers` returns, and argparse has no public name for.
_SUB_PARSERS: Any = vars(argparse)["_SubParsersAction"]
#: In which the help of an option begins, at the latest; behind the longest of most commands.
_HELP_COLUMN = 30


def laid_out(text: str, width: int) -> str:
    """Return text in lines of a width; an indented line is a command, and stays whole to be copied."""
    return "\n".join(
        line if line.startswith(" ") else textwrap.fill(line, width, break_on_hyphens=False)
        for line in text.splitlines()
    )


class Layout(argparse.HelpFormatter):
    """Puts the help of every option and command beside its name, and keeps commands whole."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_COLUMN)

    def _format_action(self, action: argparse.Action) -> str:
        # The heading says already that they are commands.
        shown = super()._format_action(action)
        return shown.partition("\n")[2] if isinstance(action, _SUB_PARSERS) else shown

    def _iter_indented_subactions(self, action: argparse.Action) -> Generator[argparse.Action]:
        # Further than options argparse would indent them, and not reckon with it when it sets the column of the help.
        sub_actions: Any = getattr(action, "_get_subactions", tuple)
        yield from sub_actions()

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return indent + laid_out(text, width)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage, and what the nearest right word is."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=Layout, **settings)
        self._given: Sequence[str] = ()

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - typeshed has three overloads of it
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse, and print the help where a command that has sub-commands is alone.

        What is unknown is refused by the parser that meets it, which knows its own options.
        """
        given: Sequence[str] = sys.argv[1:] if args is None else list(args)
        self._given = given
        if not given and self._sub_commands():
            self.print_help()
            self.exit()
        found, unknown = super().parse_known_args(given, namespace)
        if unknown:
            self._refuse(unknown[0])
        return found, unknown

    def add_subparsers(self, **settings: Any) -> Any:
        """Add sub-commands, under a heading of their own."""
        self._positionals.title = "commands"
        return super().add_subparsers(**settings)

    def error(self, message: str) -> NoReturn:
        """Print the message and exit; an unknown option explains a missing one, and is what is said."""
        unknown = self._unknown_option()
        if unknown:
            self._refuse(unknown)
        if message.startswith(_MISSING):
            examples = [line.strip() for line in (self.epilog or "").splitlines() if line.startswith(" ")]
            usage = f"example: {examples[0]}" if examples else f"{self.prog} --help shows the usage"
            message = f"{message.removeprefix(_MISSING)} is missing; {usage}"
        self._end(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices: Any = action.choices
        if choices is None or value in choices:
            return
        names = list(map(str, choices))
        if isinstance(action, _SUB_PARSERS):
            what = str(action.metavar or "command").lower()
            there = f"there are {', '.join(names)}"
            self._end(f"unknown {what} {value!r}{did_you_mean(str(value), names, there)}")
        listed = f" (choose from {', '.join(map(repr, names))})"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{did_you_mean(str(value), names) or listed}")

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self._end(f"unexpected argument {word!r}; {self.prog} --help shows the usage")
        option = word.partition("=")[0]
        known = [name for name in self._option_string_actions if name.startswith("--")]
        self._end(f"unknown option {option}{did_you_mean(option, known, f'{self.prog} --help lists them')}")

    def _end(self, message: str) -> NoReturn:
        print(printable(f"{self.prog}: error: {message}"), file=sys.stderr)
        raise SystemExit(BAD_INPUT)

    def _unknown_option(self) -> str | None:
        """Return the first option that is given and is not the beginning of one that there is."""
        for word in self._given:
            if word == "--" or (not word.startswith("-") and self._takes_the_rest()):
                return None
            name = word.partition("=")[0]
            if name.startswith("--") and not any(known.startswith(name) for known in self._option_string_actions):
                return word
        return None

    def _sub_commands(self) -> bool:
        return self._subparsers is not None

    def _takes_the_rest(self) -> bool:
        """Return whether options of a command below, or of another program, may stand behind this one's."""
        return self._sub_commands() or any(action.nargs == argparse.REMAINDER for action in self._actions)
