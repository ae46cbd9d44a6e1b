"""The one door to NVML: what its return codes mean, and how its process starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path

from laggard_exporter.gpus.child_process import Child, Request
from laggard_exporter.gpus.session import Library, Session
from laggard_exporter.gpus.worker import Worker
from laggard_exporter.nvml import child


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


# So an older driver answers for the number of a field that it does not know.
_UNKNOWN_FIELD = {ReturnCode.INVALID_ARGUMENT}

FIELD_VALUES = "nvmlDeviceGetFieldValues"
#: Its answer: the value of each field, its type, and its return code; no codes where all have a value.
FieldValues = tuple[list[float | None], tuple[int, ...], tuple[int, ...]]

_INIT_FLAG_NO_GPUS = 1

NVML = Library(
    "NVML",
    # A node whose GPUs all fell off the bus still has a driver to report.
    Request("nvmlInitWithFlags", None, (_INIT_FLAG_NO_GPUS,)),
    open_status={
        ReturnCode.LIBRARY_NOT_FOUND: "library_not_found",
        ReturnCode.DRIVER_NOT_LOADED: "driver_not_loaded",
        ReturnCode.LIB_RM_VERSION_MISMATCH: "version_mismatch",
        ReturnCode.NO_PERMISSION: "no_permission",
    },
    session_lost={ReturnCode.UNINITIALIZED, ReturnCode.DRIVER_NOT_LOADED, ReturnCode.LIB_RM_VERSION_MISMATCH},
    device_lost={ReturnCode.GPU_IS_LOST, ReturnCode.RESET_REQUIRED, ReturnCode.GPU_NOT_FOUND},
    unsupported={
        ReturnCode.NOT_SUPPORTED,
        ReturnCode.NOT_FOUND,
        ReturnCode.FUNCTION_NOT_FOUND,
        ReturnCode.ARGUMENT_VERSION_MISMATCH,
        ReturnCode.DEPRECATED,
    },
    no_permission=ReturnCode.NO_PERMISSION,
    for_root={"nvmlDeviceGetSramEccErrorStatus"},
)


def start(environment: Mapping[str, str] | None = None) -> Child:
    """Start a process for NVML. Raises :class:`OSError` when it cannot be started."""
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("nvidia-ml-py is missing; install laggard[exporter]")
    return Child(Path(child.__path__[0], "__main__.py"), [str(Path(found.origin).parent)], environment)


class Nvml(Session):
    """A session with NVML through ``worker``."""

    def __init__(self, worker: Worker, functions: Iterable[str]) -> None:
        super().__init__(NVML, worker, functions)

    def fields(self, answer: FieldValues, wanted: Iterable[tuple[int, int]]) -> list[float | None]:
        """Return the values in an answer of :data:`FIELD_VALUES`, None without. Raises as :meth:`queries`."""
        values, kinds, codes = answer
        for (number, _), value, kind, code in zip(wanted, values, kinds, codes, strict=False):
            if value is None:
                self._no_value(code, kind, number)
        return values

    def _no_value(self, code: int, kind: int, number: int) -> None:
        if code == ReturnCode.SUCCESS:
            self.count(FIELD_VALUES, f"field {number} has the unknown value type {kind}")
        elif code not in _UNKNOWN_FIELD:
            self.judge(FIELD_VALUES, code, f"field {number}")
