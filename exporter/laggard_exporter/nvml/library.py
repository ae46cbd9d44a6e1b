"""The one door to NVML. nvidia-ml-py has no types, so it is called by name, and only here its errors mean something.

Some wrappers of nvidia-ml-py take a structure that must be passed by reference: passing the structure itself ends
the process. Read the wrapper before a new function is called.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from types import ModuleType
from typing import Any

from laggard_exporter.logs import LogOnce

_logger = logging.getLogger(__name__)


class ReturnCode(IntEnum):
    """What NVML functions return, as far as it means something to us (nvml.h, nvmlReturn_t)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
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
_OPEN_STATUS: dict[int, str] = {
    ReturnCode.LIBRARY_NOT_FOUND: "library_not_found",
    ReturnCode.DRIVER_NOT_LOADED: "driver_not_loaded",
    ReturnCode.LIB_RM_VERSION_MISMATCH: "version_mismatch",
    ReturnCode.NO_PERMISSION: "no_permission",
}
STATUSES = (AVAILABLE, *_OPEN_STATUS.values(), ERROR)

_SESSION_LOST = {ReturnCode.UNINITIALIZED, ReturnCode.DRIVER_NOT_LOADED, ReturnCode.LIB_RM_VERSION_MISMATCH}
_DEVICE_LOST = {ReturnCode.GPU_IS_LOST, ReturnCode.RESET_REQUIRED, ReturnCode.GPU_NOT_FOUND}
_UNSUPPORTED = {
    ReturnCode.NOT_SUPPORTED,
    ReturnCode.FUNCTION_NOT_FOUND,
    ReturnCode.ARGUMENT_VERSION_MISMATCH,
    ReturnCode.DEPRECATED,
}
# So an older driver answers for the number of a field that it does not know.
_UNKNOWN_FIELD = {ReturnCode.INVALID_ARGUMENT}

FIELD_VALUES = "nvmlDeviceGetFieldValues"

_INIT_FLAG_NO_GPUS = 1

# Member of the value's union by value type (nvml.h, nvmlValueType_t).
_FIELD_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class SessionLostError(Exception):
    """NVML must be opened again: the driver was unloaded or replaced."""


class DeviceLostError(Exception):
    """The GPU does not answer until it is reset or comes back."""


class Nvml:
    """A session with NVML through ``library``, the module of nvidia-ml-py.

    ``errors`` counts the failed calls by function.
    """

    def __init__(self, library: ModuleType, functions: Iterable[str]) -> None:
        self.errors = Counter(dict.fromkeys(functions, 0))
        self._library = library
        self._error: type[Exception] = library.NVMLError
        self._log = LogOnce(_logger)

    def open(self) -> str:
        """Start a session and return one of :data:`STATUSES`."""
        try:
            # A node whose GPUs all fell off the bus still has a driver to report.
            self._library.nvmlInitWithFlags(_INIT_FLAG_NO_GPUS)
        except self._error as error:
            return _OPEN_STATUS.get(_code(error), ERROR)
        return AVAILABLE

    def close(self) -> None:
        """End a session, which may be lost already."""
        try:
            self._library.nvmlShutdown()
        except self._error as error:
            _logger.debug("nvmlShutdown: %s", error)

    def query(self, function: str, *arguments: Any) -> Any:
        """Return what the function answers, or None where the GPU or the driver has no answer.

        Raises :class:`DeviceLostError` and :class:`SessionLostError`. Any other failure is counted and logged.
        """
        wrapper = getattr(self._library, function, None)
        if wrapper is None:  # an nvidia-ml-py that is older or newer than the function
            return None
        try:
            return wrapper(*arguments)
        except self._error as error:
            self._judge(function, _code(error))
        except UnicodeDecodeError:
            self._count(function, "its text is no UTF-8")
        return None

    def fields(self, handle: Any, numbers: Iterable[int]) -> dict[int, float]:
        """Return the values of those fields that the GPU has. Raises as :meth:`query`."""
        values: dict[int, float] = {}
        for field in self.query(FIELD_VALUES, handle, list(numbers)) or ():
            if field.nvmlReturn != ReturnCode.SUCCESS:
                if field.nvmlReturn not in _UNKNOWN_FIELD:
                    self._judge(FIELD_VALUES, field.nvmlReturn)
            elif field.valueType in _FIELD_MEMBERS:
                values[field.fieldId] = getattr(field.value, _FIELD_MEMBERS[field.valueType])
            else:
                self._count(FIELD_VALUES, f"field {field.fieldId} has the unknown value type {field.valueType}")
        return values

    def _judge(self, function: str, code: int) -> None:
        if code in _SESSION_LOST:
            raise SessionLostError
        if code in _DEVICE_LOST:
            raise DeviceLostError
        if code not in _UNSUPPORTED:
            self._count(function, str(self._error(code)))

    def _count(self, function: str, reason: str) -> None:
        self.errors[function] += 1
        self._log(logging.WARNING, f"{function} failed: {reason}")


def _code(error: Any) -> int:
    return error.value
