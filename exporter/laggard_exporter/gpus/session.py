"""A session with a vendor's library: only here its return codes mean something."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

from laggard_exporter.gpus.child_process import Answer, Batch, DiedError, HangError, OutOfTimeError, Request
from laggard_exporter.gpus.worker import Worker
from laggard_exporter.logs import LogOnce

_logger = logging.getLogger(__name__)

SUCCESS = 0
"""The return code of a call that worked, in every library that is known here."""

AVAILABLE = "available"
ERROR = "error"
NO_ANSWER = "no_answer"
RELEASED = "released"

#: The calls for one GPU may take so long together, in seconds; then the GPU hangs.
GROUP_SECONDS = 2.0
#: A driver may initialise a GPU when it is opened, which takes it seconds: NVIDIA's without persistence mode.
OPEN_SECONDS = 10.0


@dataclass(frozen=True)
class Library:
    """A vendor's library: its name for people, the call that opens it, and what its return codes mean."""

    title: str
    init: Request
    #: What keeps a session from being opened, as it is exported.
    open_status: Mapping[int, str]
    session_lost: AbstractSet[int]
    device_lost: AbstractSet[int]
    #: A GPU or a driver that does not have something: no failure.
    unsupported: AbstractSet[int]
    no_permission: int
    #: Functions that the driver answers to root alone: that the exporter runs without rights is no failure.
    for_root: AbstractSet[str] = frozenset()

    @property
    def statuses(self) -> tuple[str, ...]:
        """Every state of a session."""
        return (AVAILABLE, *self.open_status.values(), NO_ANSWER, RELEASED, ERROR)


class SessionLostError(Exception):
    """The library must be opened again: the driver was unloaded or replaced."""


class DeviceLostError(Exception):
    """The GPU does not answer until it is reset or comes back."""


class Question(NamedTuple):
    """What was asked, and the number of its answers."""

    number: int
    batch: Batch


class Session:
    """A session with a library through ``worker``.

    ``errors`` counts the failed calls by function, ``timeouts`` those that never returned.
    """

    def __init__(self, library: Library, worker: Worker, functions: Iterable[str]) -> None:
        functions = (library.init.function, *functions)
        self.library = library
        self.errors = Counter(dict.fromkeys(functions, 0))
        self.timeouts = Counter(dict.fromkeys(functions, 0))
        self._end = 0.0
        self.worker = worker
        self._log = LogOnce(_logger)

    def begin(self, end: float) -> None:
        """Begin a scrape, which may wait until this moment of :func:`time.monotonic`."""
        self._end = end
        self.worker.forget()

    def open(self) -> str:
        """Start a session and return one of the library's statuses.

        Raises :class:`~laggard_exporter.gpus.child_process.OutOfTimeError`,
        :class:`~laggard_exporter.gpus.worker.StuckError`, and
        :class:`~laggard_exporter.gpus.child_process.HangError` for a call that an earlier scrape could not wait for.
        """
        init = self.library.init
        try:
            [(code, _)] = self._receive(self._send(Batch([init]), OPEN_SECONDS))
        except HangError as error:
            if error.request.function != init.function:
                raise
            return NO_ANSWER
        except (DiedError, OSError) as error:
            self._log(logging.ERROR, f"the process for {self.library.title} does not start: {error}")
            return ERROR
        if code == SUCCESS:
            return AVAILABLE
        self.close()
        return self.library.open_status.get(code, ERROR)

    def close(self) -> None:
        """End the session with its process: a library in use is never unloaded, a new one needs a new process."""
        self.worker.close()

    def query(self, request: Request, seconds: float | None = None) -> Any:
        """Return what one call answers; as :meth:`queries`."""
        return self.queries([request], seconds)[0]

    def queries(self, requests: Sequence[Request], seconds: float | None = None) -> list[Any]:
        """Return what each call answers, None where the GPU or the driver has no answer.

        Together they may take ``seconds``, by default :data:`GROUP_SECONDS`.

        Raises :class:`DeviceLostError`, :class:`SessionLostError` and what
        :class:`~laggard_exporter.gpus.worker.Worker` raises. Any other failure is counted and logged.
        """
        return self.receive(self.send(Batch(requests), seconds))

    def send(self, batch: Batch, seconds: float | None = None) -> Question:
        """Ask as :meth:`queries` does, without waiting: the other process works at it meanwhile."""
        return Question(self._send(batch, GROUP_SECONDS if seconds is None else seconds), batch)

    def receive(self, question: Question) -> list[Any]:
        """Return what :meth:`queries` returns."""
        answers = self._receive(question.number)
        return [
            value if code == SUCCESS else self._judged(request, code, value)
            for request, (code, value) in zip(question.batch.requests, answers, strict=True)
        ]

    def judge(self, function: str, code: int, reason: str) -> None:
        """Count and log a failure; what is not supported is none.

        Raises :class:`SessionLostError` and :class:`DeviceLostError`.
        """
        library = self.library
        if code in library.session_lost:
            raise SessionLostError
        if code in library.device_lost:
            raise DeviceLostError
        if code == library.no_permission and function in library.for_root:
            self._log(logging.INFO, f"{function} is answered to root alone: its metric is absent")
        elif code not in library.unsupported:
            self.count(function, reason)

    def count(self, function: str, reason: str) -> None:
        """Count and log a failure."""
        self.errors[function] += 1
        self._log(logging.WARNING, f"{function} failed: {reason}")

    def _send(self, batch: Batch, seconds: float) -> int:
        # Calls that are quick are begun only where there is time to see whether they hang.
        if seconds <= GROUP_SECONDS and time.monotonic() + seconds > self._end:
            raise OutOfTimeError
        with self._counting():
            return self.worker.send(batch, seconds)

    def _receive(self, number: int) -> list[Answer]:
        with self._counting():
            return self.worker.receive(number, self._end)

    @contextlib.contextmanager
    def _counting(self) -> Generator[None, None, None]:
        try:
            yield
        except HangError as error:
            self.timeouts[error.request.function] += 1
            self._log(logging.ERROR, f"{error}: its process is given up")
            raise
        except DiedError as error:
            self.errors[error.request.function] += 1
            self._log(logging.ERROR, f"{error}")
            raise

    def _judged(self, request: Request, code: int, reason: str | None) -> None:
        self.judge(request.function, code, reason or f"{self.library.title} return code {code}")
