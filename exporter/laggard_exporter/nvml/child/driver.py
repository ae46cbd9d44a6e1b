"""Calls the functions of NVML by their names.

Values are plain: structures become dictionaries. Some wrappers of nvidia-ml-py take a structure that must be passed by
reference: passing the structure itself ends the process. They have a method of their own here. Read the wrapper before
a new function is called.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import TYPE_CHECKING, Any

from laggard_exporter.nvml.child.activity import Activity
from laggard_exporter.nvml.child.codes import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    NO_TEXT,
    NOT_SUPPORTED,
    REFUSED,
    SUCCESS,
    UNKNOWN,
)
from laggard_exporter.nvml.child.events import Events
from laggard_exporter.nvml.child.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Callable

# nvml.h, nvmlFieldValue_t: number, scope, time stamp, latency, type of the value, return code, and the value as a word.
_FIELD = "IIqqiiQ"
# What the word holds, by type (nvmlValueType_t): double, unsigned of 32, 64 and 64 bits, signed of 64 and 32, a short.
_FIELD_TYPES: dict[int, Callable[[int], float]] = {
    0: lambda word: struct.unpack("=d", word.to_bytes(8, sys.byteorder))[0],
    1: (0xFFFFFFFF).__and__,
    2: int,
    3: int,
    4: lambda word: word - (word >> 63 << 64),
    5: lambda word: (word & 0xFFFFFFFF) - ((word >> 31 & 1) << 32),
    6: (0xFFFF).__and__,
}
#: So many different lists of fields are kept ready.
_MOST_LISTS = 64


def plain(value: Any) -> Any:
    """Return the value as numbers, texts, lists and dictionaries."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, ctypes.Structure):
        return {field[0]: plain(getattr(value, field[0])) for field in value._fields_}
    if not hasattr(value, "__len__"):
        return dict(value.__dict__)  # what nvidia-ml-py makes of some structures
    return [plain(item) for item in value]


class Driver:
    """NVML through ``library``, the module of nvidia-ml-py; ``send`` takes the frames of events."""

    def __init__(self, library: Any, send: Callable[[int, Any], None]) -> None:
        self._library = library
        self._activity = Activity(library)
        self._shares = Shares(library)
        self._events = Events(library, send)
        self._handles: dict[Any, Any] = {}
        self._questions: dict[Any, tuple[struct.Struct, bytes]] = {}
        self._own: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetHandleByIndex": self._open,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._open_mig,
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetSramEccErrorStatus": self._sram,
            "nvmlDeviceGetGpuFabricInfoV": self._fabric,
            "nvmlDeviceGetProcessUtilization": self._process_utilization,
            "nvmlGpmMetricsGet": self._gpm_metrics,
            "nvmlEventSetCreate": self._new_events,
            "nvmlDeviceRegisterEvents": self._add_events,
            "nvmlEventSetWait_v2": self._wait_for_events,
        }

    def call(self, function: str, device: Any, arguments: Any) -> tuple[int, Any]:
        """Return NVML's return code and the plain value of one call."""
        try:
            if function in self._own:
                return SUCCESS, self._own[function](device, *arguments)
            wrapper = getattr(self._library, function, None)
            if wrapper is None:  # an nvidia-ml-py that is older or newer than the function
                return FUNCTION_NOT_FOUND, None
            subject = () if device is None else (self._handles[device],)
            return SUCCESS, plain(wrapper(*subject, *arguments))
        except self._library.NVMLError as error:
            return error.value, None
        except UnicodeDecodeError:
            return NO_TEXT, None
        except Exception as error:  # one call must not end the process
            return REFUSED, repr(error)

    def _open(self, _: Any, index: int) -> bool:
        # Whatever the old handle belonged to, it is not asked again.
        self._handles.pop(index, None)
        self._handles[index] = self._library.nvmlDeviceGetHandleByIndex(index)
        return True

    def _open_mig(self, gpu: int, index: int) -> bool:
        self._handles.pop((gpu, index), None)
        self._handles[gpu, index] = self._library.nvmlDeviceGetMigDeviceHandleByIndex(self._handles[gpu], index)
        return True

    def _fields(self, device: Any, wanted: Any) -> tuple[list[Any], tuple[int, ...], tuple[int, ...]]:
        """Return the values of the fields, their types, and their codes where one failed; None where there is no value.

        Not with the wrapper of nvidia-ml-py, which fills and reads one structure at a time: that takes several times
        as long as the call.
        """
        function = getattr(self._library.nvmlLib, "nvmlDeviceGetFieldValues", None)
        if function is None:
            raise self._library.NVMLError(FUNCTION_NOT_FOUND)
        key = tuple(wanted)
        question = self._questions.get(key)
        if question is None:
            if len(self._questions) >= _MOST_LISTS:
                self._questions.clear()
            # A field that the driver leaves as it was is an error, not a zero.
            layout = struct.Struct(f"@{_FIELD * len(key)}")
            empty = (word for number, scope in key for word in (number, scope, 0, 0, 0, UNKNOWN, 0))
            question = layout, layout.pack(*empty)
            self._questions[key] = question
        layout, data = question
        buffer = ctypes.create_string_buffer(data, layout.size)
        if code := function(self._handles[device], len(key), buffer):
            raise self._library.NVMLError(code)
        words = layout.unpack(buffer)
        kinds, codes = words[4 :: len(_FIELD)], words[5 :: len(_FIELD)]
        values = [
            None if code or kind not in _FIELD_TYPES else _FIELD_TYPES[kind](word)
            for kind, code, word in zip(kinds, codes, words[6 :: len(_FIELD)])  # noqa: B905 - of one length each
        ]
        return values, kinds, codes if None in values else ()

    def _sram(self, device: Any) -> Any:
        status = self._library.c_nvmlEccSramErrorStatus_v1_t()
        self._library.nvmlDeviceGetSramEccErrorStatus(self._handles[device], ctypes.byref(status))
        return {"bThresholdExceeded": status.bThresholdExceeded}

    def _fabric(self, device: Any) -> Any:
        # Newest first: an older driver refuses the version of a structure that it does not know.
        for name in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
            structure = getattr(self._library, name, None)
            if structure is None:
                continue
            info = structure()
            try:
                self._library.nvmlDeviceGetGpuFabricInfoV(self._handles[device], ctypes.byref(info))
            except self._library.NVMLError as error:
                if error.value != ARGUMENT_VERSION_MISMATCH:
                    raise
            else:
                return {"state": info.state, "healthMask": info.healthMask}
        raise self._library.NVMLError(NOT_SUPPORTED)

    def _process_utilization(self, gpu: int) -> dict[int, int]:
        return self._shares.by_process(gpu, self._handles[gpu])

    def _gpm_metrics(self, gpu: int, numbers: Any, instance: int | None) -> Any:
        return self._activity.metrics(gpu, self._handles[gpu], numbers, instance)

    def _new_events(self, _: None) -> None:
        self._events.create()

    def _add_events(self, gpu: int) -> None:
        self._events.register(gpu, self._handles[gpu])

    def _wait_for_events(self, _: None) -> None:
        self._events.start()
