"""Processes that laggard starts and ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

_END_SECONDS = 10
#: Of prctl(2): the signal that the kernel sends to a process when its parent dies. It survives an exec.
_PR_SET_PDEATHSIG = 1
#: How late the kernel may end a wait that has a time limit, in nanoseconds. Children have it from their parent.
_PR_SET_TIMERSLACK = 29
_LIBC = ctypes.CDLL(None, use_errno=True)


def launch(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server, in a session of its own: Ctrl-C reaches this process alone, which then ends the others in order.

    The kernel kills it when the thread that started it ends, also by SIGKILL.

    Args:
        command: the program and its arguments.
        log: gets what it prints, after what is there.
        environment: more than this process has.
        folder: where it runs; by default where this process does.

    Raises:
        OSError: the program or the log cannot be opened.
    """
    parent = os.getpid()
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Two system calls between fork and exec, and no other way to make them there.
            preexec_fn=lambda: end_with(parent, signal.SIGKILL),  # noqa: PLW1509 - as above
        )


def end_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send a signal to this process when ``parent`` ends; called between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended meanwhile
        os.kill(os.getpid(), number)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Generator[None]:
    """Have SIGTERM interrupt the main thread as Ctrl-C does, so that it ends what it started and removes its files."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wake_late(seconds: float) -> None:
    """Have this process and those that it starts wake up to so much late, where nothing but a time limit wakes them.

    Go and Python have threads that look for work many times a second. Most of that falls together then.
    """
    _LIBC.prctl(_PR_SET_TIMERSLACK, int(seconds * 1e9), 0, 0, 0)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, first politely."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)


def how_it_ended(code: int) -> str:
    """Return how a process ended, from its exit code as :mod:`subprocess` has it."""
    if code >= 0:
        return f"with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"


def last_line(log: Path) -> str:
    """Return the last line that a server wrote, or a word that says that there is none."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return "its log is empty"
