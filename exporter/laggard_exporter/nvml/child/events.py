"""XID events: waited for in a thread of their own, and sent without being asked for."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any

from laggard_exporter.nvml.child.frames import EVENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TIMEOUT = 10
_XID = 0x8
_WAIT_MILLISECONDS = 10_000


class Events:
    """The event set of NVML; ``library`` is the module of nvidia-ml-py, ``send`` takes the frames."""

    def __init__(self, library: Any, send: Callable[[int, Any], None]) -> None:
        self._library = library
        self._send = send
        self._set: Any = None

    def watch(self, handles: Mapping[int, Any]) -> None:
        """Send the XID events of these GPUs from now on; NVML does not tell earlier ones."""
        library = self._library
        events = library.nvmlEventSetCreate()
        watched: dict[int | None, int] = {}
        for gpu, handle in handles.items():
            # A GPU without events must not take those of the others.
            with contextlib.suppress(library.NVMLError):
                if library.nvmlDeviceGetSupportedEventTypes(handle) & _XID:
                    library.nvmlDeviceRegisterEvents(handle, _XID, events)
                    watched[_pointer(handle)] = gpu
        self._set = events
        threading.Thread(target=self._forward, args=(events, watched), daemon=True).start()

    def _forward(self, events: Any, watched: dict[int | None, int]) -> None:
        while self._set is events:
            try:
                event = self._library.nvmlEventSetWait_v2(events, _WAIT_MILLISECONDS)
            except self._library.NVMLError as error:
                # A lost GPU is told as an error for ever; the other GPUs still have events.
                if error.value != _TIMEOUT:
                    time.sleep(1)
                continue
            gpu = watched.get(_pointer(event.device))
            if gpu is not None and event.eventType & _XID:
                self._send(EVENT, (gpu, event.eventData, time.time()))


def _pointer(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
