"""The kernel's log, read once for all who look for something in it."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KERNEL_LOG = Path("/dev/kmsg")

# One such line for each kill, mm/oom_kill.c dump_oom_victim; the task's name may hold anything.
OOM_KILL = re.compile(r"oom-kill:.*,task=.*,pid=([0-9]+),uid=[0-9]+$")

#: Longer than any record: a shorter buffer would make the kernel refuse it.
_RECORD = 8192

#: A log that is written faster than it is read ends a call after so many records; the next call goes on.
MOST_RECORDS = 10_000

#: Messages that wait for a reader who does not come; then the oldest are gone, as in the kernel's own buffer.
_WAITING = 10_000

_MICROSECONDS = 1_000_000


class Message(NamedTuple):
    """A message that a reader looks for."""

    match: re.Match[str]
    since_boot: float
    """On the kernel's clock, in seconds; 0 where the record does not say."""
    is_old: bool
    """Whether it was there before the log was opened."""


class KernelLog:
    """A log in the format of /dev/kmsg. It is opened when it is first read, and tried again where it may not be."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self.path = path
        self.problem = ""
        """Why it cannot be read; empty when it can."""
        self._descriptor: int | None = None
        self._rest = b""
        self._readers: list[LogReader] = []
        self._lock = threading.Lock()

    def reader(self, pattern: re.Pattern[str]) -> LogReader:
        """Return who gets the messages in which the pattern is found. All are made before the first reads."""
        self._readers.append(LogReader(self, pattern))
        return self._readers[-1]

    def pump(self) -> None:
        """Hand to every reader what came since the last call; at the first call the whole log, as old."""
        with self._lock:
            is_old = self._descriptor is None
            if self._descriptor is None:
                try:
                    self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError as error:
                    self.problem = f"{self.path}: {error.strerror}"
                    return
            self.problem = ""
            for record in self._records(self._descriptor, None if is_old else MOST_RECORDS):
                self._hand_out(record, is_old=is_old)

    def _records(self, descriptor: int, most: int | None) -> Iterator[bytes]:
        count = 0
        while most is None or count < most:
            count += 1
            try:
                data = os.read(descriptor, _RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten before it was read: the next read is of the oldest that is left
                continue
            except OSError as error:
                self.problem = f"{self.path}: {error.strerror}"
                return
            if not data:
                return
            # One record at a time from the kernel, any piece of the text from a file.
            *records, self._rest = (self._rest + data).split(b"\n")
            yield from records

    def _hand_out(self, record: bytes, *, is_old: bool) -> None:
        head, _, text = record.partition(b";")
        if record.startswith(b" ") or not text:  # a property of the message above, or no record
            return
        message = text.decode("utf-8", "replace")
        for reader in self._readers:
            if match := reader.pattern.search(message):
                microseconds = 0
                with contextlib.suppress(IndexError, ValueError):
                    microseconds = int(head.split(b",")[2])
                reader.waiting.append(Message(match, microseconds / _MICROSECONDS, is_old))


class LogReader:
    """Gets the messages of a log in which ``pattern`` is found."""

    def __init__(self, log: KernelLog, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self.waiting: deque[Message] = deque(maxlen=_WAITING)
        self._log = log

    @property
    def problem(self) -> str:
        """Why the log cannot be read; empty when it can, or when nobody tried."""
        return self._log.problem

    def read(self) -> list[Message]:
        """Return the messages since the last call."""
        self._log.pump()
        found: list[Message] = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self.waiting.popleft())
        return found
