"""Runs a command as the systemd unit would: the file system read-only, a user without rights, the unit's system calls.

    python -m tests.deploy.confined FILTERS FAMILIES COMMAND ...

is the last step of :func:`command`, which needs root. The kernel's part is what systemd makes of the settings as well:
a filter of system calls (seccomp(2)).
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
NOBODY = 65534
#: The one capability that the unit keeps.
_RIGHTS = ("--no-new-privs", "--inh-caps=-all,+syslog", "--ambient-caps=-all,+syslog", "--bounding-set=-all,+syslog")
_READ_ONLY = "for at in / /tmp; do mount --bind $at $at && mount -o remount,bind,ro $at || exit 97; done"

# linux/filter.h and linux/seccomp.h: load a word, jump if equal, return; the places of number and first argument.
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _FIRST_ARGUMENT = 0, 16
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the error EPERM
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


def group(name: str) -> set[str]:
    """Return the names of the system calls of one of systemd's groups."""
    text = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", name], capture_output=True, text=True, check=True
    ).stdout
    words = [line.strip() for line in text.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return {call for word in words for call in (group(word) if word.startswith("@") else {word})}


def allowed(filters: list[str]) -> set[str]:
    """Return the system calls that values of SystemCallFilter leave."""
    calls = group("@default")
    for line in filters:
        named = {call for word in line.removeprefix("~").split() for call in group(word)}
        calls = calls - named if line.startswith("~") else calls | named
    return calls


def program(calls: set[str], families: list[int]) -> bytes:
    """Return the filter that lets these calls through, and sockets of these families."""
    numbers = {name: int(number) for name, number in re.findall(r"__NR_(\w+) (\d+)", NUMBERS.read_text())}
    lines = [(_LOAD, 0, 0, _NUMBER), (_JUMP_EQUAL, 0, 2 + 2 * len(families), numbers["socket"])]
    lines.append((_LOAD, 0, 0, _FIRST_ARGUMENT))
    for family in families:
        lines += [(_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    lines.append((_RETURN, 0, 0, _REFUSE))
    for name in sorted((calls & numbers.keys()) - {"socket"}):
        lines += [(_JUMP_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _ALLOW)]
    lines.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def user() -> int:
    """Return nobody, or the own user where the interpreter stands in a folder that is closed to nobody."""
    probe = [*_become(NOBODY), "sh", "-c", f"exec {sys.executable} -c ''"]
    result = subprocess.run(probe, check=False, capture_output=True)
    return NOBODY if result.returncode == 0 else os.getuid()


def _become(number: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups")


def command(folder: Path, filters: list[str], families: list[str], arguments: list[str]) -> list[str]:
    """Return the command that runs ``arguments`` confined.

    ``folder`` is seen as /srv, ``filters`` and ``families`` are the values of SystemCallFilter and
    RestrictAddressFamilies.
    """
    inner = [
        *_become(user()),
        *_RIGHTS,
        sys.executable,
        "-m",
        "tests.deploy.confined",
        ",".join(filters),
        ",".join(families),
        *arguments,
    ]
    mounts = f'{_READ_ONLY}; mount --bind "$0" /srv || exit 97; exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mounts, str(folder), *inner]


def main() -> None:
    """Confine this process and become the command."""
    filters, families, *arguments = sys.argv[1:]
    numbers = [int(getattr(socket, name)) for name in families.split(",")]
    code = program(allowed(filters.split(",")), numbers)
    data = ctypes.create_string_buffer(code, len(code))
    description = struct.pack("@HP", len(code) // 8, ctypes.addressof(data))
    library = ctypes.CDLL(None, use_errno=True)
    for call in ((_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, description, 0, 0)):
        if library.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl")
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()
