"""Makes this process look like one on another platform: what Windows' or macOS' Python lacks is taken away.

Run before laggard is imported. Packages of others are imported first: on those platforms they have their own
ways.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import select
import signal
import sys
import time
from collections.abc import Collection
from typing import Any

#: Modules of the standard library, and members of others, that Windows lacks. Not os.fork, by which multiprocessing
#: starts processes here and which nothing of ours calls.
_WINDOWS = {
    "modules": ("fcntl", "grp", "pwd", "resource", "termios"),
    os: (
        "fchmod", "geteuid", "getuid", "getgid", "mkfifo", "register_at_fork", "set_blocking", "sysconf",
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK",
    ),
    select: ("poll", "epoll"),
    signal: ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGRTMIN", "pthread_sigmask", "sigwait"),
    time: ("CLOCK_BOOTTIME", "clock_gettime", "clock_gettime_ns"),
}  # fmt: skip
_MACOS = {
    time: ("CLOCK_BOOTTIME",),
    os: ("sched_getaffinity", "pidfd_open"),
    select: ("epoll",),
    signal: ("SIGRTMIN", "SIGRTMAX"),
}
#: Folders that only Linux has.
_FOLDERS = ("/proc", "/sys", "/dev/shm")


def become(platform: str, packages: Collection[str] = ()) -> None:
    """Take away what ``windows`` or ``macos`` lacks, after the packages have been imported."""
    for name in (*packages, "asyncio", "logging.handlers", "multiprocessing", "subprocess", "tempfile", "uuid"):
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    lacking: dict[Any, tuple[str, ...]] = {"windows": _WINDOWS, "macos": _MACOS}[platform]
    for owner, names in lacking.items():
        for name in names:
            if owner == "modules":
                sys.modules[name] = None  # type: ignore[assignment] - so an import fails
            elif hasattr(owner, name):
                delattr(owner, name)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        path = arguments[0] if event in ("open", "os.listdir", "os.scandir") else ""
        if isinstance(path, str | bytes) and os.fsdecode(path).startswith(_FOLDERS):
            raise FileNotFoundError(2, "No such file or directory", path)

    sys.addaudithook(refuse)
