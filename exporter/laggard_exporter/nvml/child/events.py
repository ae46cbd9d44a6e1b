"""XID events: waited for in a thread of their own, and sent without being asked for."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any

from laggard_exporter.gpus.child.frames import EVENT
from laggard_exporter.nvml.child.codes import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

_XID = 0x8
_WAIT_MILLISECONDS = 10_000


class Events:
    """The event set of NVML; ``library`` is the module of nvidia-ml-py, ``send`` takes the frames."""

    def __init__(self, library: Any, send: Callable[[int, Any], None]) -> None:
        self._library = library
        self._send = send
        self._set: Any = None
        self._watched: dict[int | None, int] = {}

    def create(self) -> None:
        """Begin with a new set, without a GPU; the thread of the one before ends."""
        self._watched = {}
        self._set = self._library.nvmlEventSetCreate()

    def register(self, gpu: int, handle: Any) -> None:
        """Watch a GPU."""
        # One without events must not take those of the others; one that is lost says so elsewhere.
        with contextlib.suppress(self._library.NVMLError):
            if self._library.nvmlDeviceGetSupportedEventTypes(handle) & _XID:
                self._library.nvmlDeviceRegisterEvents(handle, _XID, self._set)
                self._watched[_pointer(handle)] = gpu

    def start(self) -> None:
        """Send the XID events of these GPUs from now on; NVML does not tell earlier ones."""
        threading.Thread(target=self._forward, args=(self._set, self._watched), daemon=True).start()

    def _forward(self, events: Any, watched: dict[int | None, int]) -> None:
        while self._set is events:
            try:
                event = self._library.nvmlEventSetWait_v2(events, _WAIT_MILLISECONDS)
            except self._library.NVMLError as error:
                # A lost GPU is told as an error for ever; the other GPUs still have events.
                if error.value != TIMEOUT:
                    time.sleep(1)
                continue
            gpu = watched.get(_pointer(event.device))
            if gpu is not None and event.eventType & _XID:
                self._send(EVENT, (gpu, event.eventData, time.time()))


def _pointer(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
