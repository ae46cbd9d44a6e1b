"""What procfs says of a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from laggard_exporter import files

#: What torch calls a data worker's main thread.
WORKER_COMMAND = "pt_data_worker"

#: Windows has neither this nor /proc.
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

#: Counted from the field behind the command's name, which is the third of proc_pid_stat(5).
_STATE, _MAJOR_FAULTS, _USER, _SYSTEM, _START, _IO_WAIT = 0, 9, 11, 12, 19, 39


class ProcessTimes(NamedTuple):
    """A process's entry ``stat``; times are in seconds."""

    state: str
    """R, S, D, T, t, Z or X, as proc_pid_stat(5) has it."""
    major_faults: int
    user: float
    system: float
    start_ticks: int
    io_wait: float

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger holds the process."""
        return self.state in {"T", "t"}


def process_times(procfs: Path, pid: int) -> ProcessTimes | None:
    """Return the process's times, None where there is no such process or not all of its entry."""
    text = files.read_text(procfs / str(pid) / "stat") or ""
    # The name of the command stands in parentheses and may hold some itself.
    fields = text.rpartition(")")[2].split()
    try:
        return ProcessTimes(
            fields[_STATE],
            int(fields[_MAJOR_FAULTS]),
            int(fields[_USER]) / _TICKS,
            int(fields[_SYSTEM]) / _TICKS,
            int(fields[_START]),
            int(fields[_IO_WAIT]) / _TICKS,
        )
    except (IndexError, ValueError):
        return None


def has_memory(procfs: Path, pid: int) -> bool:
    """Return whether the process is seen and has memory: none that is about to end has."""
    return (files.read_text(procfs / str(pid) / "statm") or "0").split()[0] != "0"


def control_group(procfs: Path, sysfs: Path, pid: int, controller: str = "") -> Path | None:
    """Return the folder of the process's control group; None where the exporter does not see it.

    The group is of version 2, or of version 1 where its controller is named.
    """
    for line in (files.read_text(procfs / str(pid) / "cgroup") or "").splitlines():
        _, _, place = line.partition(":")
        controllers, _, name = place.partition(":/")
        if controller in controllers.split(",") and ".." not in Path(name).parts:
            return sysfs / "fs" / "cgroup" / controller / name
    return None


def stopped(procfs: Path, sysfs: Path, pid: int) -> bool | None:
    """Return whether a signal, a debugger or a frozen control group holds the process; None where it is not seen.

    A process in a frozen group seems to sleep.
    """
    times = process_times(procfs, pid) if pid else None
    if times is None or times.stopped:
        return times and times.stopped
    return any(
        group is not None and word in (files.read_text(group / name) or "").splitlines()
        for group, name, word in (
            (control_group(procfs, sysfs, pid), "cgroup.events", "frozen 1"),
            (control_group(procfs, sysfs, pid, "freezer"), "freezer.state", "FROZEN"),
        )
    )


def counts_io_wait(procfs: Path) -> bool:
    """Return whether the kernel counts the time that a process waits for block devices; from 5.14 on only if asked."""
    return files.read_text(procfs / "sys" / "kernel" / "task_delayacct") == "1"


def command(procfs: Path, pid: int) -> str:
    """Return the name of the process's main thread, empty where there is none."""
    return files.read_text(procfs / str(pid) / "comm") or ""


def threads(procfs: Path, pid: int) -> list[int]:
    """Return the process's threads."""
    return [int(name) for name in files.names(procfs / str(pid) / "task") if name.isdecimal()]


def shows_children(procfs: Path, pid: int) -> bool:
    """Return whether the kernel says what a process has started; not all are built to (CONFIG_PROC_CHILDREN)."""
    return files.read_text(_children(procfs, pid, pid)) is not None


def children(procfs: Path, pid: int, thread: int) -> list[int]:
    """Return the processes that a thread has started; none where that is not shown."""
    text = files.read_text(_children(procfs, pid, thread)) or ""
    return [int(child) for child in text.split() if child.isdecimal()]


def _children(procfs: Path, pid: int, thread: int) -> Path:
    return procfs / str(pid) / "task" / str(thread) / "children"
