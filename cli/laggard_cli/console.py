"""Where text goes: to a person's terminal, whose width it keeps, or to a program, a whole line each."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

#: Wider than any line: what reads a pipe has no width.
_ENDLESS = 10_000
#: Columns that a text has at least, however narrow a terminal is.
_NARROWEST = 16


def stdout() -> Console:
    """Return the console of the output."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console of errors and progress."""
    return _console(sys.stderr)


def _console(file: IO[str]) -> Console:
    if file.isatty():
        return Console(file=file, markup=False, emoji=False)
    lines = cast("IO[str]", _Lines(file))
    # Who gives a width to a pipe, as watch does, shows it on a terminal.
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() and int(columns) else None
    return Console(file=lines, width=width or _ENDLESS, soft_wrap=not width, markup=False, emoji=False, highlight=False)


class _Lines:
    """A file to which no line is written with spaces at its end, by which tables fill their columns."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.encoding = getattr(file, "encoding", "utf-8")

    def write(self, text: str) -> int:
        return self._file.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        self._file.flush()

    def isatty(self) -> bool:
        return False


@dataclass(frozen=True)
class Hanging:
    """A text behind its beginning, each further line below the first; a word wider than the terminal stays whole.

    Such a word is an address, which nobody can open in two parts.
    """

    text: Text
    beginning: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines."""
        indent = cell_len(self.beginning.plain)
        width = max(options.max_width - indent, _NARROWEST)
        del console
        for number, line in enumerate(_wrapped(self.text, None if options.no_wrap else width)):
            start = Text(" " * indent) if number else self.beginning
            yield Text.assemble(start, line, no_wrap=True, overflow="ignore")


@dataclass(frozen=True)
class Screen:
    """Parts below each other, cropped to the terminal, and a line at its foot that is always there."""

    parts: Sequence[RenderableType]
    foot: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines that fit."""
        height = options.height or options.size.height
        lines = console.render_lines(Group(*self.parts), options.update(height=None), pad=False)
        kept = lines[: max(height - 1, 0)]
        for line in kept:
            yield from (Segments(line), Segments([Segment.line()]))
        yield from (Segments([Segment.line()]) for _ in range(height - 1 - len(kept)))
        self.foot.truncate(options.max_width)
        self.foot.end = ""
        yield self.foot


def _wrapped(text: Text, width: int | None) -> Iterator[Text]:
    """Yield the lines of a text, broken between words alone."""
    for paragraph in text.split("\n", allow_blank=True):
        breaks: list[int] = []
        used = 0
        for word in re.finditer(r"\S+\s*", paragraph.plain):
            if width is not None and used and used + cell_len(word[0].rstrip()) > width:
                breaks.append(word.start())
                used = 0
            used += cell_len(word[0])
        for line in paragraph.divide(breaks):
            line.rstrip()
            yield line


def show(lines: Iterable[str], column: int = 0) -> None:
    """Print lines to the output; on a terminal, an indented one that is too long goes on below its text.

    Args:
        lines: without line ends.
        column: in which the text of an indented line begins; by default behind its indent.
    """
    console = stdout()
    for line in lines:
        indent = len(line) - len(line.lstrip())
        begin = max(indent, column) if indent else 0
        console.print(Hanging(Text(line[begin:]), Text(line[:begin])))


def hanging(text: str | Text, indent: int = 0, label: str = "", column: int = 0, style: str = "") -> Hanging:
    """Return a text that begins after an indent, or after a label that fills a column behind it."""
    beginning = Text.assemble(" " * indent, (label.ljust(column), "dim"))
    return Hanging(Text(text, style=style) if isinstance(text, str) else text, beginning)
