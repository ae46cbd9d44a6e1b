"""``laggard top`` and ``laggard diagnose --watch``: the newest answer, on a terminal in place of the one before.

A terminal shows it on its alternate screen, cropped to its size, and takes keys. Elsewhere a block is printed with its
time when something has changed, never a copy.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from laggard_cli.console import Screen, hanging, stdout
from laggard_cli.diagnose.model import Diagnosis, Rank
from laggard_cli.diagnose.view import one_rank, view
from laggard_cli.errors import CommandError
from laggard_cli.terminal import printable

#: Keys by what they do; a rank is opened by its number.
KEYS = "o own time  w waits  n number  0-9 Enter open a rank  Esc back  q quit"
_SORTS: dict[str, Callable[[Rank], tuple[float, float]]] = {
    "o": lambda rank: (-rank.own_seconds, 0.0),
    "w": lambda rank: (-(rank.wait_seconds or 0.0), 0.0),
    "n": lambda rank: (float(len(rank.rank)), float(rank.rank) if rank.rank.isdecimal() else 0.0),
}
#: What the first ranks are in each order.
_FIRST = {"o": "slowest", "w": "longest waiting", "n": "first"}
_QUIT, _BACK, _ENTER, _ERASE = "q", "\x1b", ("\r", "\n"), ("\x7f", "\b")
#: Of the number of a rank.
_DIGITS = 9


@dataclass(frozen=True)
class Shown:
    """What a person chose to see."""

    sort: str = "o"
    typed: str = ""
    opened: str = ""

    def after(self, key: str) -> Shown:
        """Return what is shown after a key."""
        if key in _SORTS:
            return replace(self, sort=key)
        if key in _ENTER:
            return replace(self, opened=self.typed, typed="")
        if key == _BACK:
            return replace(self, opened="", typed="")
        if key in _ERASE:
            return replace(self, typed=self.typed[:-1])
        return replace(self, typed=(self.typed + key)[:_DIGITS]) if key.isascii() and key.isdigit() else self


def watch(
    ask: Callable[[], list[Diagnosis]], first: list[Diagnosis], seconds: float, more: Callable[[], RenderableType]
) -> int:
    """Show answers until a person has seen enough: ``q`` or Ctrl-C.

    Args:
        ask: gives the newest answer.
        first: the one that is there already.
        seconds: between two answers.
        more: what is shown below each.
    """
    console = stdout()
    show = _screen if sys.stdout.isatty() and not console.is_dumb_terminal else _blocks
    return show(console, ask, first, seconds, more)


def _blocks(
    console: Console,
    ask: Callable[[], list[Diagnosis]],
    first: list[Diagnosis],
    seconds: float,
    more: Callable[[], RenderableType],
) -> NoReturn:
    """Print a block with its time where it says something new: other verdicts or states, not other milliseconds."""
    said: object = None
    told: list[Diagnosis] | None = first
    problem = ""
    while True:
        now = problem or [_substance(diagnosis) for diagnosis in told or ()]
        if now != said:
            said = now
            console.print(Text(time.strftime("%Y-%m-%d %H:%M:%S"), style="dim"))
            if problem:
                console.print(hanging(problem, 2, style="bold yellow"), crop=False)
            else:
                console.print(view(told or []), crop=False)
                console.print(more(), crop=False)
            console.file.flush()
        time.sleep(seconds)
        try:
            told, problem = ask(), ""
        except CommandError as error:
            problem = printable(str(error))


def _substance(diagnosis: Diagnosis) -> object:
    """Return what of a diagnosis is news when it changes."""
    facts = tuple(diagnosis.facts.get(name) for name in ("ranks_live", "ranks_expected"))
    verdicts = tuple((each.alert, each.severity, each.rank, each.phase, each.host) for each in diagnosis.verdicts)
    standing_out = tuple(sorted(diagnosis.standing_out))
    states = (diagnosis.unjudged, tuple(sorted(diagnosis.uncompared_ranks)), diagnosis.failure, diagnosis.ended)
    return diagnosis.cluster, diagnosis.run, facts, verdicts, standing_out, states


def _screen(
    console: Console,
    ask: Callable[[], list[Diagnosis]],
    told: list[Diagnosis],
    seconds: float,
    more: Callable[[], RenderableType],
) -> int:
    """Show the newest answer on the alternate screen; the terminal is then as it was, however this ends."""
    shown, problem, asked = Shown(), "", time.strftime("%H:%M:%S")
    due = time.monotonic() + seconds
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_page(told, shown, problem, asked, more), refresh=True)
            key = _key(max(0.0, due - time.monotonic()))
            if key == _QUIT:
                return 0
            if key:
                shown = shown.after(key)
                continue
            due = time.monotonic() + seconds
            try:
                told, problem = ask(), ""
                asked = time.strftime("%H:%M:%S")
            except CommandError as error:
                problem = f"as of {asked}; since then: {error}"


def _page(
    told: list[Diagnosis], shown: Shown, problem: str, asked: str, more: Callable[[], RenderableType]
) -> RenderableType:
    head = hanging(printable(problem), style="bold yellow") if problem else hanging(f"as of {asked}", style="dim")
    if shown.opened:
        body = one_rank(told, shown.opened)
    else:
        order = _SORTS[shown.sort]
        body = view(
            [replace(each, ranks=tuple(sorted(each.ranks, key=order))) for each in told], which=_FIRST[shown.sort]
        )
    typed = f"rank {shown.typed}_  " if shown.typed else ""
    return Screen([head, body, more()], Text(f"{typed}{KEYS}", style="reverse", no_wrap=True, overflow="crop"))


def _takes_keys() -> bool:
    """Return whether keys can be read one by one: on a terminal, and not of Windows."""
    return sys.stdin.isatty() and sys.platform != "win32"


@contextlib.contextmanager
def _keys() -> Generator[None]:
    """Have the terminal give each key at once, and show none of them."""
    if not _takes_keys():
        yield
        return
    import termios  # noqa: PLC0415 - it is absent on Windows
    import tty  # noqa: PLC0415 - as above

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """Return the next key within a time; empty where there is none, ``?`` for one of several characters."""
    if not _takes_keys():
        time.sleep(seconds)
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return ""
    read = os.read(sys.stdin.fileno(), 64)
    if not read:
        return _QUIT
    text = read.decode("ascii", errors="ignore")
    return "?" if len(text) != 1 else text
