"""Has a dump read by a child process, which bears what a hostile one costs."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from laggard.shared import dumps, untrusted
from laggard_exporter.hang.dump_file import DumpError
from laggard_exporter.hang.facts import MAX_BYTES, Facts, from_json

_PROGRAM = Path(__file__).with_name("child.py")


def read_facts(path: Path, user: int, seconds: float, rank: int = 0) -> Facts | None:
    """Return what the dump of this rank and user says, None where there is no such file.

    Raises:
        DumpError: the file is another user's, or cannot be read in ``seconds``.
    """
    try:
        fd = untrusted.open_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DumpError(error.strerror or str(error)) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DumpError("not a regular file")
        if status.st_uid != user or status.st_mode & untrusted.OTHERS_WRITE:
            raise DumpError("others than the rank's user can write it")
        if status.st_size > dumps.MAX_BYTES:
            raise DumpError(f"{status.st_size} bytes are more than the {dumps.MAX_BYTES} that are read")
        return _in_a_child(fd, seconds, rank)
    finally:
        os.close(fd)


def _in_a_child(fd: int, seconds: float, rank: int) -> Facts:
    arguments = (_PROGRAM.parents[2], dumps.MAX_BYTES, rank)
    command = [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, arguments)]
    try:
        done = subprocess.run(
            command, stdin=fd, capture_output=True, timeout=seconds, check=False, env={}, start_new_session=True
        )
    except subprocess.TimeoutExpired as error:
        raise DumpError(f"it takes longer than {seconds:.0f} s to read") from error
    except OSError as error:
        raise DumpError(f"no process to read it in: {error.strerror}") from error
    if done.returncode or len(done.stdout) > MAX_BYTES:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise DumpError(last or f"its reader ended with {done.returncode}")
    try:
        return from_json(done.stdout)
    except ValueError as error:
        raise DumpError(str(error)) from error
