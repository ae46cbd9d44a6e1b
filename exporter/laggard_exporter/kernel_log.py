"""The kernel's log from now on, one message after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

#: Longer than any record: a shorter buffer would make the kernel refuse it.
_RECORD = 8192

#: A log that is written faster than it is read ends a call after so many records; the next call goes on.
_RECORDS = 10_000


class KernelLog:
    """Reads ``/dev/kmsg``, or a file like it, from the end that it has when this is made.

    Raises :class:`OSError` where it may not.
    """

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)
        self._rest = b""

    def read(self) -> Iterator[str]:
        """Yield the messages that came since the last call; those that the kernel has thrown away are missing."""
        for _ in range(_RECORDS):
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # overwritten before it was read: the next read is of the oldest that is left
            if not record:
                return
            # The kernel gives one record at a time, a file any piece of its text.
            *lines, self._rest = (self._rest + record).split(b"\n")
            for line in lines:
                if not line.startswith(b" "):  # else a property of the message above
                    yield line.partition(b";")[2].decode("utf-8", "replace")

    def close(self) -> None:
        """Close the log."""
        os.close(self._fd)
