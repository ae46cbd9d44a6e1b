"""When and how the kernel ended the processes of ranks, to the millisecond: of those too that could not say so."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard.shared.statefile import EndedBy, Ending, Snapshot
from laggard_exporter.kernel_log import LogReader
from laggard_exporter.ranks import processes

#: What names a process of this boot: its number may be another's a moment later, its start is its own.
_Key = tuple[int, int]

#: PIDFD_GET_INFO of linux/pidfd.h, for the first version of its structure: what is asked for, and where the answer has
#: the status as waitpid gives it. Its parent has that first.
_GET_INFO, _INFO_SIZE, _EXIT, _STATUS_OFFSET = 0xC040FF0B, 64, 1 << 3, 60

#: A parent that asks for the status of its child does so within this time.
_ASKED_NS = 2_000_000_000

#: So often the thread looks whether it is held up; after so long it was. The rules take ends within a second of each
#: other for one, so no time may be wrong by more.
_BEAT_SECONDS, _LATE_NS = 0.5, 900_000_000

#: In the place of an exception's name, of a process that the kernel killed for that.
OUT_OF_MEMORY = "out of memory"


class Deaths:
    """Notes when each process that was :meth:`watched <watch>` ended. ``clock`` gives nanoseconds since boot.

    ``procfs`` shows the processes of the exporter's own process namespace, ``log`` says whom the kernel killed for lack
    of memory.

    The kernel wakes a thread of this object through a descriptor of the process (pidfd, Linux 5.3), and says how it
    ended (Linux 6.15). A process that the exporter's namespace does not show is known to have lived until it was last
    watched, and no more.
    """

    def __init__(
        self,
        *,
        procfs: Path = Path("/proc"),
        clock: Callable[[], int] = statefile.boottime_ns,
        log: LogReader | None = None,
    ) -> None:
        self._procfs = procfs
        self._clock = clock
        self._log = log
        self._watched: dict[int, _Key] = {}
        #: 0 for an end of which this was told too late.
        self._ended: dict[_Key, int] = {}
        #: As waitpid has them; None where the kernel did not say, or too late.
        self._statuses: dict[_Key, int | None] = {}
        self._lived: dict[_Key, int] = {}
        #: By which the kernel's log and /proc know them. A process that runs another program may have a second file.
        self._pids: dict[_Key, int] = {}
        self._out_of_memory: set[_Key] = set()
        self._poll: select.epoll | None = None
        self._lock = threading.Lock()

    def watch(self, file: Snapshot, path: Path) -> None:
        """Note when the process of a rank that lives now ends. At each call it is known to live."""
        key = _key(file)
        self._lived[key] = self._clock()
        with self._lock:
            if not file.holder_pid or key in self._watched.values():
                return
            with contextlib.suppress(OSError, AttributeError):
                descriptor = os.pidfd_open(file.holder_pid)
                # The number may have become another process's since the lock was seen. /proc may hide that (hidepid).
                if statefile.holder(path) != file.holder_pid:
                    os.close(descriptor)
                    return
                if self._poll is None:
                    self._poll = select.epoll()
                    threading.Thread(target=self._wait, args=(self._poll,), name="laggard-deaths", daemon=True).start()
                self._watched[descriptor] = key
                self._pids[key] = file.holder_pid
                self._poll.register(descriptor, select.EPOLLIN)

    def completed(self, file: Snapshot) -> Snapshot:
        """Return the file with what the kernel says of the end of its process, where the process did not.

        A process that lives and has let go of its file runs another program now (execve), so its training has ended.
        """
        key = _key(file)
        with self._lock:
            ended = self._ended.get(key)
            if file.alive or file.ended_ns:
                return file
            if ended is None:
                # One that ends has given its memory back before it lets go of its files.
                runs = key in self._pids and processes.has_memory(self._procfs, self._pids[key])
                return replace(file, state=RankState.FINISHED) if runs else file
            if key not in self._statuses and self._clock() - ended < _ASKED_NS:
                return file
            # What was said once stays.
            status = self._statuses.setdefault(key, None)
        for message in self._log.read() if self._log is not None else ():
            pid = int(message.match[1])
            if victim := next((known for known in reversed(self._pids) if self._pids[known] == pid), None):
                self._out_of_memory.add(victim)
        said = OUT_OF_MEMORY if key in self._out_of_memory else ""
        state = RankState.FINISHED if status == 0 else file.state
        return replace(file, ended_ns=ended, state=state, ending=Ending(EndedBy.UNKNOWN, status or 0, said))

    def lived_ns(self, file: Snapshot) -> int:
        """Return when the process was last known to live, by the exporter; 0 where it never was."""
        return self._lived.get(_key(file), 0)

    def keep(self, files: Iterable[Snapshot]) -> None:
        """Forget all processes but these."""
        keys = set(map(_key, files))
        self._lived = {key: time for key, time in self._lived.items() if key in keys}
        self._pids = {key: pid for key, pid in self._pids.items() if key in keys}
        self._out_of_memory &= keys
        with self._lock:
            self._ended = {key: time for key, time in self._ended.items() if key in keys}
            self._statuses = {key: status for key, status in self._statuses.items() if key in keys}

    def _wait(self, poll: select.epoll) -> None:
        now = self._clock()
        while True:
            found = poll.poll(_BEAT_SECONDS)
            before, now = now, self._clock()
            # Who was held up, by a signal or for want of a processor, hears of an end later than it was, and maybe only
            # when asked again: a process that was stopped has waited for so long and looks no more.
            ended = now if now - before < _LATE_NS else 0
            for descriptor, events in found or poll.poll(0):
                with self._lock:
                    key = self._watched[descriptor]
                    self._ended.setdefault(key, ended)
                    status = None
                    with contextlib.suppress(OSError):  # an older kernel does not know
                        status = _status(descriptor)
                        if status is None and not events & select.EPOLLHUP:
                            poll.modify(descriptor, 0)  # until its parent has asked
                            continue
                    self._statuses.setdefault(key, status)
                    del self._watched[descriptor]
                    poll.unregister(descriptor)
                    os.close(descriptor)


def _status(descriptor: int) -> int | None:
    """Return the status with which a process ended; None before its parent has it. Raises :class:`OSError`."""
    import fcntl  # noqa: PLC0415 - the command line comes along here on Windows too, which has none

    answer = bytearray(struct.pack(f"=Q{_INFO_SIZE - 8}x", _EXIT))
    fcntl.ioctl(descriptor, _GET_INFO, answer)
    (known,), (status,) = struct.unpack_from("=Q", answer), struct.unpack_from("=i", answer, _STATUS_OFFSET)
    return status if known & _EXIT else None


def _key(file: Snapshot) -> _Key:
    return file.facts.pid, file.facts.start_boottime_ns
