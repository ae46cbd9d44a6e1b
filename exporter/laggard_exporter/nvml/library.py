"""The one door to NVML: only here its return codes mean something."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from laggard_exporter.logs import LogOnce
from laggard_exporter.nvml.child_process import Answer, DiedError, HangError, OutOfTimeError, Request
from laggard_exporter.nvml.worker import Worker

_logger = logging.getLogger(__name__)


class ReturnCode(IntEnum):
    """What NVML functions return, as far as it means something to us (nvml.h, nvmlReturn_t)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28


AVAILABLE = "available"
ERROR = "error"
NO_ANSWER = "no_answer"
RELEASED = "released"
_OPEN_STATUS: dict[int, str] = {
    ReturnCode.LIBRARY_NOT_FOUND: "library_not_found",
    ReturnCode.DRIVER_NOT_LOADED: "driver_not_loaded",
    ReturnCode.LIB_RM_VERSION_MISMATCH: "version_mismatch",
    ReturnCode.NO_PERMISSION: "no_permission",
}
STATUSES = (AVAILABLE, *_OPEN_STATUS.values(), NO_ANSWER, RELEASED, ERROR)

_SESSION_LOST = {ReturnCode.UNINITIALIZED, ReturnCode.DRIVER_NOT_LOADED, ReturnCode.LIB_RM_VERSION_MISMATCH}
_DEVICE_LOST = {ReturnCode.GPU_IS_LOST, ReturnCode.RESET_REQUIRED, ReturnCode.GPU_NOT_FOUND}
_UNSUPPORTED = {
    ReturnCode.NOT_SUPPORTED,
    ReturnCode.NOT_FOUND,
    ReturnCode.FUNCTION_NOT_FOUND,
    ReturnCode.ARGUMENT_VERSION_MISMATCH,
    ReturnCode.DEPRECATED,
}
# So an older driver answers for the number of a field that it does not know.
_UNKNOWN_FIELD = {ReturnCode.INVALID_ARGUMENT}

FIELD_VALUES = "nvmlDeviceGetFieldValues"

# Functions that the driver answers to root alone: that the exporter runs without rights is no failure.
_FOR_ROOT = {"nvmlDeviceGetSramEccErrorStatus"}

_INIT = "nvmlInitWithFlags"
_INIT_FLAG_NO_GPUS = 1

#: The calls for one GPU may take so long together, in seconds; then the GPU hangs.
GROUP_SECONDS = 2.0
#: A driver without persistence mode initialises the GPU when it is opened, which takes it seconds.
OPEN_SECONDS = 10.0


class SessionLostError(Exception):
    """NVML must be opened again: the driver was unloaded or replaced."""


class DeviceLostError(Exception):
    """The GPU does not answer until it is reset or comes back."""


class Question(NamedTuple):
    """What was asked, and the number of its answers."""

    number: int
    requests: Sequence[Request]


class Nvml:
    """A session with NVML through ``worker``.

    ``errors`` counts the failed calls by function, ``timeouts`` those that never returned.
    """

    def __init__(self, worker: Worker, functions: Iterable[str]) -> None:
        functions = (_INIT, *functions)
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
        """Start a session and return one of :data:`STATUSES`.

        Raises :class:`~laggard_exporter.nvml.child_process.OutOfTimeError`,
        :class:`~laggard_exporter.nvml.worker.StuckError`, and
        :class:`~laggard_exporter.nvml.child_process.HangError` for a call that an earlier scrape could not wait for.
        """
        try:
            # A node whose GPUs all fell off the bus still has a driver to report.
            [(code, _)] = self._receive(self._send([Request(_INIT, None, (_INIT_FLAG_NO_GPUS,))], OPEN_SECONDS))
        except HangError as error:
            if error.request.function != _INIT:
                raise
            return NO_ANSWER
        except (DiedError, OSError) as error:
            self._log(logging.ERROR, f"the process for NVML does not start: {error}")
            return ERROR
        if code == ReturnCode.SUCCESS:
            return AVAILABLE
        self.close()
        return _OPEN_STATUS.get(code, ERROR)

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
        :class:`~laggard_exporter.nvml.worker.Worker` raises. Any other failure is counted and logged.
        """
        return self.receive(self.send(requests, seconds))

    def send(self, requests: Sequence[Request], seconds: float | None = None) -> Question:
        """Ask as :meth:`queries` does, without waiting: the other process works at it meanwhile."""
        return Question(self._send(requests, GROUP_SECONDS if seconds is None else seconds), requests)

    def receive(self, question: Question) -> list[Any]:
        """Return what :meth:`queries` returns."""
        answers = self._receive(question.number)
        return [self._value(request, answer) for request, answer in zip(question.requests, answers, strict=True)]

    def fields(self, answers: Iterable[tuple[int, int, Any]], numbers: Iterable[int]) -> list[float | None]:
        """Return the values in the answers of :data:`FIELD_VALUES`, None without. Raises as :meth:`queries`."""
        return [
            value if code == 0 and value is not None else self._no_value(code, kind, number)
            for (code, kind, value), number in zip(answers, numbers, strict=True)
        ]

    def _no_value(self, code: int, kind: int, number: int) -> None:
        if code == ReturnCode.SUCCESS:
            self._count(FIELD_VALUES, f"field {number} has the unknown value type {kind}")
        elif code not in _UNKNOWN_FIELD:
            self._judge(FIELD_VALUES, code, f"field {number}")

    def _send(self, requests: Sequence[Request], seconds: float) -> int:
        # Calls that are quick are begun only where there is time to see whether they hang.
        if seconds <= GROUP_SECONDS and time.monotonic() + seconds > self._end:
            raise OutOfTimeError
        with self._counting():
            return self.worker.send(requests, seconds)

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

    def _value(self, request: Request, answer: Answer) -> Any:
        code, value = answer
        if code == ReturnCode.SUCCESS:
            return value
        self._judge(request.function, code, value or f"NVML return code {code}")
        return None

    def _judge(self, function: str, code: int, reason: str) -> None:
        if code in _SESSION_LOST:
            raise SessionLostError
        if code in _DEVICE_LOST:
            raise DeviceLostError
        if code == ReturnCode.NO_PERMISSION and function in _FOR_ROOT:
            self._log(logging.INFO, f"{function} is answered to root alone: its metric is absent")
        elif code not in _UNSUPPORTED:
            self._count(function, reason)

    def _count(self, function: str, reason: str) -> None:
        self.errors[function] += 1
        self._log(logging.WARNING, f"{function} failed: {reason}")
