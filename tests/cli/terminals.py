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
from collections.abc import Mapping, Sequence
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


def uncoloured(text: str) -> str:
    """Text without sequences for a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def is_as_it_was(name: str, text: str) -> None:
    """Compare what is printed with its file, less what differs each time."""
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:9090", re.sub(r"ago \([^)]*\)", "ago (22:43:10)", text))
    file = GOLDEN / name
    if os.environ.get(_WRITE) == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"GOLDEN=write pytest … writes {file.name}; read the difference"
