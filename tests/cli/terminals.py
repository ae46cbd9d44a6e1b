"""Commands as a person runs them: on a terminal of a given size, or into a pipe; what they print is kept in files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
#: Set to ``write``: what is printed now becomes what is expected. Read the difference before it is committed.
_WRITE = "GOLDEN"
_LAGGARD = (sys.executable, "-m", "laggard_cli.main")
_SECONDS = 30


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    left_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "LAGGARD_PROMETHEUS")
    own = {name: text for name, text in os.environ.items() if name not in left_out}
    return {**own, "TERM": "xterm-256color", "PYTHONUTF8": "1", **more}


def piped(*arguments: str, **environment: str) -> str:
    """Output of a command that must end with 0 and print no error."""
    done = subprocess.run(
        [*_LAGGARD, *arguments], env=_environment(environment), capture_output=True, timeout=_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode("utf-8")


def on_terminal(
    columns: int,
    *arguments: str,
    lines: int = 40,
    keys: Sequence[tuple[str, str]] = (),
    settings: Mapping[str, str] | None = None,
) -> str:
    """What a command prints on a terminal, with the sequences that colour it.

    Args:
        columns: of the terminal.
        arguments: of laggard.
        lines: of the terminal.
        keys: each a text after which a key is pressed, and the key.
        settings: further environment variables.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    pending = list(keys)
    seen = 0
    with subprocess.Popen(
        [*_LAGGARD, *arguments], env=_environment(settings or {}), stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        # A terminal whose other end is closed is an error to read.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                shown += part
                while pending and (found := shown.find(pending[0][0].encode(), seen)) >= 0:
                    seen = found + len(pending[0][0].encode())
                    os.write(ours, pending.pop(0)[1].encode())
        os.close(ours)
        assert process.wait(_SECONDS) == 0, shown
    return shown.decode("utf-8").replace("\r\n", "\n")


def forked(run: Callable[[], int], columns: int, folder: Path) -> tuple[int, str]:
    """Exit code and output of a copy of this process, on a terminal or, with no columns, in a pipe.

    A copy has all modules already, which a new process loads for longer than a command takes. Output and errors are
    one, as a person sees them.
    """
    ours, theirs = os.openpty() if columns else os.pipe()
    if columns:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            os.close(ours)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(TERM="xterm-256color", TZ="UTC")
            null = os.open(os.devnull, os.O_RDONLY)
            for number, source in ((0, theirs if columns else null), (1, theirs), (2, theirs)):
                os.dup2(source, number)
            sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - they stay until the end
            sys.stdout, sys.stderr = (
                open(number, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115 - as above
                for number in (1, 2)
            )
            code = run()
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode("utf-8").replace("\r\n", "\n")


def uncoloured(text: str) -> str:
    """Text without sequences for a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def on_screen(text: str) -> str:
    """What a person sees in the end: lines that were drawn over or erased are not there any more."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b"):
            row = max(row - int(part[2:-1] or 1), 0)
        elif part.endswith("K") and part.startswith("\x1b"):
            lines[row] = ""
        elif not part.startswith("\x1b"):
            end = column + len(part)
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][end:]
            column = end
    return "\n".join(lines)


def is_as_it_was(name: str, text: str) -> None:
    """Compare what is printed with its file, less what differs each time."""
    for differs, stands_for_it in (
        (r"\d+ (s|min) ago \([^)]*\)", "3 min ago (22:43:10)"),
        (r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:9090"),
        (r"\d{8}T\d{6}\.(profile|trace)", r"20260131T224310.\1"),
        (r"(samples|reads), [\d.]+ s", r"\1, 2.0 s"),
    ):
        text = re.sub(differs, stands_for_it, text)
    file = GOLDEN / name
    if os.environ.get(_WRITE) == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"GOLDEN=write pytest … writes {file.name}; read the difference"
