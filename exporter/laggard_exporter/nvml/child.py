"""The process in which NVML runs: it answers calls by name until its standard input ends.

The exporter starts this file by its path, with no site packages and few imports: the process is as small as Python
with nvidia-ml-py can be. It knows nothing of metrics. A request is a list of calls, ``(function, device, arguments)``;
its answer holds ``(return code, value)`` for each. Values are plain: structures become dictionaries.

Some wrappers of nvidia-ml-py take a structure that must be passed by reference: passing the structure itself ends
the process. They have a method of their own here. Read the wrapper before a new function is called.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import mmap
import os
import select
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SUCCESS = 0
NOT_SUPPORTED = 3
NOT_FOUND = 6
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
UNKNOWN = 999
ARGUMENT_VERSION_MISMATCH = 25
#: Codes of our own, beside NVML's: a text that is no UTF-8, and a call that nvidia-ml-py refused.
NO_TEXT, REFUSED = -1, -2

#: Number of the frames that nobody asked for: an event, ``(index of the GPU, XID, Unix time)``.
EVENT = 0

#: What the shared memory says: the number of the requests under way, and which of them.
PROGRESS = struct.Struct("=QQ")

#: Two samples of GPM closer than this say nothing (nvml.h asks for 100 ms); the newest answer is given again.
SHORTEST_WINDOW = 0.25
#: The driver samples at least so often what processes use (nvml.h): until then its last samples are the newest.
SAMPLE_SECONDS = 1.0
#: An older sample is no start of a window that anybody would call current.
LONGEST_WINDOW = 600.0

XID_EVENTS = 0x8
EVENT_WAIT_MILLISECONDS = 10_000

# nvml.h, nvmlFieldValue_t: number, scope, time stamp, latency, type of the value, return code, and the value as a word.
_FIELD = struct.Struct("@IIqqiiQ")
# What the word holds, by type (nvmlValueType_t): double, unsigned of 32, 64 and 64 bits, signed of 64 and 32, a short.
_FIELD_TYPES: dict[int, Callable[[int], float]] = {
    0: lambda word: struct.unpack("=d", word.to_bytes(8, sys.byteorder))[0],
    1: lambda word: word & 0xFFFFFFFF,
    2: int,
    3: int,
    4: lambda word: word - (word >> 63 << 64),
    5: lambda word: (word & 0xFFFFFFFF) - ((word >> 31 & 1) << 32),
    6: lambda word: word & 0xFFFF,
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
        self._send = send
        self._handles: dict[Any, Any] = {}
        self._questions: dict[Any, bytes] = {}
        self._shares: dict[Any, tuple[int, float, dict[int, int]]] = {}
        self._gpm: dict[Any, tuple[Any, float, Any]] = {}
        self._events: Any = None
        self._own: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetHandleByIndex": self._open,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._open_mig,
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetSramEccErrorStatus": self._sram,
            "nvmlDeviceGetGpuFabricInfoV": self._fabric,
            "nvmlDeviceGetProcessUtilization": self._process_utilization,
            "nvmlGpmMetricsGet": self._gpm_metrics,
            "nvmlEventSetCreate": self._watch,
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

    def _fields(self, device: Any, wanted: Any) -> list[tuple[int, int, Any]]:
        """Return code, type and value of each field.

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
            question = b"".join(_FIELD.pack(number, scope, 0, 0, 0, UNKNOWN, 0) for number, scope in key)
            self._questions[key] = question
        values = ctypes.create_string_buffer(question, len(question))
        if code := function(self._handles[device], len(key), values):
            raise self._library.NVMLError(code)
        return [
            (code, kind, _FIELD_TYPES[kind](word) if kind in _FIELD_TYPES else None)
            for _, _, _, _, kind, code, word in _FIELD.iter_unpack(values)
        ]

    def _sram(self, device: Any) -> Any:
        status = self._library.c_nvmlEccSramErrorStatus_v1_t()
        self._library.nvmlDeviceGetSramEccErrorStatus(self._handles[device], ctypes.byref(status))
        return plain(status)

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
                return plain(info)
        raise self._library.NVMLError(NOT_SUPPORTED)

    def _process_utilization(self, gpu: Any) -> dict[int, int]:
        """Return per cent by process, from the newest sample of each since the call before."""
        before: tuple[int | None, float, dict[int, int]] = self._shares.get(gpu, (None, 0.0, {}))
        newest, since, shares = before
        samples: Any
        try:
            samples = self._library.nvmlDeviceGetProcessUtilization(self._handles[gpu], newest or 0)
        except self._library.NVMLError as error:
            # So nvidia-ml-py and the driver say that there is none.
            if error.value not in {SUCCESS, NOT_FOUND}:
                raise
            samples = ()
        now = time.monotonic()
        found: dict[int, tuple[int, int]] = {}
        for sample in samples:
            found[sample.pid] = max(found.get(sample.pid, (0, 0)), (sample.timeStamp, sample.smUtil))
        if newest is None:  # of any age, and of processes that ended
            shares = {}
        elif found:
            since, shares = now, {pid: percent for pid, (_, percent) in found.items()}
        elif now - since >= SAMPLE_SECONDS:
            shares = {}
        newest = max((at for at, _ in found.values()), default=newest or 0)
        self._shares[gpu] = (newest, since, shares)
        return shares

    def _gpm_metrics(self, gpu: int, numbers: Any, instance: int | None) -> Any:
        """Return the length of a window, the metrics by number over it, and whether it is a new one.

        It is 0, without metrics, where a first window begins now.
        """
        library, handle, key = self._library, self._handles[gpu], (gpu, instance)
        before = self._gpm.get(key)
        if before is None and not library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise library.NVMLError(NOT_SUPPORTED)
        now = time.monotonic()
        if before is not None and now - before[1] < SHORTEST_WINDOW:
            return (*before[2], False)
        sample = library.nvmlGpmSampleAlloc()
        try:
            if instance is None:
                library.nvmlGpmSampleGet(handle, sample)
            else:
                library.nvmlGpmMigSampleGet(handle, instance, sample)
            answer: tuple[float, dict[int, float]] = (0.0, {})
            if before is not None and now - before[1] < LONGEST_WINDOW:
                answer = (now - before[1], self._gpm_compare(before[0], sample, numbers))
        except Exception:
            library.nvmlGpmSampleFree(sample)
            raise
        self._gpm[key] = (sample, now, answer)
        if before is not None:
            library.nvmlGpmSampleFree(before[0])
        return (*answer, True)

    def _gpm_compare(self, first: Any, second: Any, numbers: Any) -> dict[int, float]:
        request = self._library.c_nvmlGpmMetricsGet_t()
        request.version = self._library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(numbers)
        request.sample1, request.sample2 = first, second
        for index, number in enumerate(numbers):
            request.metrics[index].metricId = number
        self._library.nvmlGpmMetricsGet(request)
        metrics = [request.metrics[index] for index in range(len(numbers))]
        return {metric.metricId: metric.value for metric in metrics if metric.nvmlReturn == SUCCESS}

    def _watch(self, _: None, gpus: Any) -> bool:
        """Send the XID events of these GPUs from now on; NVML does not tell earlier ones."""
        library = self._library
        events = library.nvmlEventSetCreate()
        watched: dict[int | None, int] = {}
        for gpu in gpus:
            handle = self._handles[gpu]
            try:
                if library.nvmlDeviceGetSupportedEventTypes(handle) & XID_EVENTS:
                    library.nvmlDeviceRegisterEvents(handle, XID_EVENTS, events)
                    watched[_pointer(handle)] = gpu
            except library.NVMLError:  # a GPU without events must not take those of the others
                continue
        self._events = events
        threading.Thread(target=self._forward, args=(events, watched), daemon=True).start()
        return True

    def _forward(self, events: Any, watched: dict[int | None, int]) -> None:
        while self._events is events:
            try:
                event = self._library.nvmlEventSetWait_v2(events, EVENT_WAIT_MILLISECONDS)
            except self._library.NVMLError as error:
                # A lost GPU is told as an error for ever; the other GPUs still have events.
                if error.value != TIMEOUT:
                    time.sleep(1)
                continue
            gpu = watched.get(_pointer(event.device))
            if gpu is not None and event.eventType & XID_EVENTS:
                self._send(EVENT, (gpu, event.eventData, time.time()))


def _pointer(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def read_exactly(descriptor: int, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end of the stream."""
    data = b""
    while len(data) < size and (chunk := os.read(descriptor, size - len(data))):
        data += chunk
    return data


def _end_with_the_exporter() -> None:
    # Without an event asked for, poll returns when the other end of the pipe is closed: also while a call hangs.
    waiting = select.poll()
    waiting.register(0, 0)
    waiting.poll()
    os._exit(0)


def main() -> None:
    """Serve. Arguments: folder of nvidia-ml-py, descriptor of the memory that tells which call is under way."""
    sys.path.append(sys.argv[1])
    progress = mmap.mmap(int(sys.argv[2]), mmap.PAGESIZE)
    threading.Thread(target=_end_with_the_exporter, daemon=True).start()
    # Whatever a library prints must not get between the frames.
    output = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(number: int, content: Any) -> None:
        data = marshal.dumps((number, content))
        data = len(data).to_bytes(4, "little") + data
        with lock:
            while data:
                data = data[os.write(output, data) :]

    driver = Driver(__import__("pynvml"), send)
    # What is loaded stays: the collector of garbage need not look at it again and again.
    gc.freeze()
    while header := read_exactly(0, 4):
        number, calls = marshal.loads(read_exactly(0, int.from_bytes(header, "little")))  # noqa: S302 - our own parent
        answers: list[tuple[int, Any]] = []
        for index, (function, device, arguments) in enumerate(calls):
            PROGRESS.pack_into(progress, 0, number, index)
            answers.append(driver.call(function, device, arguments))
        send(number, answers)


if __name__ == "__main__":
    main()
