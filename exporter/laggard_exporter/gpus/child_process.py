"""One child process in which a vendor's library runs: what it is asked, what it answers, and whether it hangs."""

from __future__ import annotations

import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laggard_exporter.gpus.child.frames import EVENT, HEAD, PROGRESS, dump, load, pack

#: A child that wants to run and may not, on a node without a free processor, gets its time so many times again.
PATIENCE = 4
#: The kernel needs a moment to end a killed process.
KILL_SECONDS = 0.25


class Request(NamedTuple):
    """One call of a function of the library. ``device`` is an index, a pair of indices for MIG, or None."""

    function: str
    device: int | tuple[int, int] | None = None
    arguments: tuple[Any, ...] = ()

    @property
    def gpu(self) -> int | None:
        """The index of the GPU that the call is for, None for one about the node."""
        return self.device[0] if isinstance(self.device, tuple) else self.device


class Batch:
    """Calls that are asked together. One that is asked again and again is made into bytes once."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.data = dump([tuple(request) for request in requests])


Answer = tuple[int, Any]
"""A return code of the library or of what calls it there, and a plain value."""


class Event(NamedTuple):
    """An XID event of the GPU with this index."""

    gpu: int
    xid: int
    time: float


class HangError(Exception):
    """The call ``request`` did not return in time. The child was given up."""

    def __init__(self, request: Request) -> None:
        super().__init__(f"{request.function} does not return")
        self.request = request


class DiedError(Exception):
    """The child ended during the call ``request``."""

    def __init__(self, request: Request, code: int | None) -> None:
        super().__init__(f"{request.function} ended the process (exit code {code})")
        self.request = request


class OutOfTimeError(Exception):
    """The scrape may not wait longer, though the call still may take longer."""


class _Pending(NamedTuple):
    batch: Batch
    seconds: float
    deadline: float
    patience: int = PATIENCE


class Child:
    """One child process. Construction starts it. Raises :class:`OSError` when it cannot be started.

    Args:
        program: what it runs, which calls :func:`laggard_exporter.gpus.child.serving.serve`. Its arguments are
            folders in which it finds packages, this one's last, and the page of ``serve``.
        folders: those of further packages.
        environment: its environment variables, by default the exporter's own.
    """

    def __init__(
        self, program: Path, folders: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self._page = os.memfd_create("laggard-gpus")
        os.ftruncate(self._page, mmap.PAGESIZE)
        self._progress = mmap.mmap(self._page, mmap.PAGESIZE)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, *folders, Path(__file__).parents[2], str(self._page)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._page,),
                bufsize=0,
                env=environment,
                # A Ctrl-C in a terminal is for the exporter, which ends its child itself.
                start_new_session=True,
            )
        except OSError:
            self._progress.close()
            os.close(self._page)
            raise
        assert self.process.stdin is not None  # noqa: S101 - both are pipes, asked for above
        assert self.process.stdout is not None  # noqa: S101 - as above
        self._input, self._output = self.process.stdin, self.process.stdout
        self._received = bytearray()
        self._number = EVENT
        # What was sent and is not answered yet, in the order of the answers, and answers that nobody took yet.
        self._sent: dict[int, _Pending] = {}
        self._answers: dict[int, list[Answer]] = {}
        self._unwanted: set[int] = set()
        self.events: list[Event] = []

    def send(self, batch: Batch, seconds: float) -> int:
        """Ask; the answers come under the number that is returned, and may take ``seconds`` in all.

        What is sent while the child still works at something gets its time when its turn comes.

        Raises :class:`DiedError`.
        """
        self._number += 1
        self._sent[self._number] = _Pending(batch, seconds, time.monotonic() + seconds)
        try:
            self._input.write(pack(self._number, batch.data))
        except BrokenPipeError as error:
            raise self._died() from error
        return self._number

    def receive(self, number: int, end: float) -> list[Answer]:
        """Return the answers to what was sent under this number, waited for until ``end``.

        Raises :class:`HangError`, :class:`DiedError` and :class:`OutOfTimeError`; after the last the child goes on.
        """
        while number not in self._answers:
            self._receive_next(end)
        return self._answers.pop(number)

    def forget(self) -> None:
        """Throw away the answers to what was sent before, whenever they come."""
        self._unwanted |= self._sent.keys()
        self._answers.clear()

    def _receive_next(self, end: float) -> None:
        first, pending = next(iter(self._sent.items()))
        frame = self._frame(min(pending.deadline, end))
        now = time.monotonic()
        if frame is not None:
            number, content = frame
            del self._sent[number]
            if number in self._unwanted:
                self._unwanted.remove(number)
            else:
                self._answers[number] = content
            for following, waiting in self._sent.items():
                self._sent[following] = waiting._replace(deadline=now + waiting.seconds)
                break
        elif now < pending.deadline:
            raise OutOfTimeError
        elif pending.patience and self._wants_to_run():
            self._sent[first] = pending._replace(deadline=now + pending.seconds, patience=pending.patience - 1)
        else:
            raise HangError(self._current())

    def _frame(self, deadline: float) -> tuple[int, Any] | None:
        while (frame := self._parse()) is None:
            received = self._receive(max(0.0, deadline - time.monotonic()))
            if received is None:
                return None
            if not received:
                raise self._died()
        return frame

    def _parse(self) -> tuple[int, Any] | None:
        """Take the next answer out of what was received, and all events before it."""
        while len(self._received) >= HEAD.size:
            size, number = HEAD.unpack_from(self._received)
            end = HEAD.size + size
            if len(self._received) < end:
                break
            content = load(self._received[HEAD.size : end])
            del self._received[:end]
            if number != EVENT:
                return number, content
            self.events.append(Event(*content))
        return None

    def _receive(self, seconds: float) -> bool | None:
        """Wait for bytes; None when none came, False at the end of the stream."""
        waiting = select.poll()
        waiting.register(self._output, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return None
        chunk = os.read(self._output.fileno(), 1 << 16)
        self._received += chunk
        return bool(chunk)

    def _wants_to_run(self) -> bool:
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_bytes()
        except OSError:
            return False
        # A call that hangs sleeps; the name of the command stands in parentheses before the state.
        return stat.rpartition(b")")[2].split()[:1] == [b"R"]

    def _died(self) -> DiedError:
        try:
            code = self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        return DiedError(self._current(), code)

    def _current(self) -> Request:
        """Return the call that the child is at, or the first that it has not begun."""
        number, index = PROGRESS.unpack_from(self._progress)
        if number not in self._sent:
            number, index = next(iter(self._sent)), 0
        # All before it are answered, though perhaps not read yet.
        requests = self._sent[number].batch.requests
        return requests[min(index, len(requests) - 1)]

    def close(self) -> bool:
        """End the child and return whether it is gone. Events that it sent before are in :attr:`events`."""
        while self._receive(0):
            self._parse()
        for stream in (self._input, self._output):
            stream.close()
        self._progress.close()
        os.close(self._page)
        self.process.kill()
        try:
            self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True
