"""The device's clock: from the first use of CUDA or ROCm on, phases are measured by events in its stream."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from laggard._device import DeviceClock
from laggard._events import LOST, Event
from laggard._hooks.base import Hook
from laggard._part import Host
from laggard._steps import Step
from laggard.shared.phases import Phase

_RELAXED = 2
"""``cudaStreamCaptureModeRelaxed``, and HIP's."""

_RUNTIMES = {"libcudart": "cudaThreadExchangeStreamCaptureMode", "libamdhip64": "hipThreadExchangeStreamCaptureMode"}
"""Libraries of device runtimes, and what sets the capture mode of a thread. ROCm's torch answers as CUDA's does."""


class DeviceHook(Hook):
    """Switches the recorder to the device's clock once CUDA is in use."""

    name = "device"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        #: The clock, from the drain on in which CUDA was first found in use.
        self.clock: DeviceClock | None = None
        #: Edges that found no event.
        self.dropped = 0
        self._observer = self.guarded(self._after_backward)

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch; CUDA is looked at when the first steps have ended."""
        return {"torch": lambda _: None}

    def uninstall(self) -> None:
        """Go back to the host's clock."""
        super().uninstall()
        self.recorder.device = self.clock = self.host.exposure.current_stream = None

    def steps_ended(self, steps: list[Step]) -> None:
        """Start the clock when CUDA is in use. On the drain thread, which asks for the events."""
        if self.clock is not None:
            if steps and not any(step.phases[Phase.BACKWARD] for step in steps):
                self._use(None)  # what was the stream of backward may not be used any more
            return
        torch: Any = sys.modules.get("torch")  # a loop instrumented by hand may do without
        if torch is None or not torch.cuda.is_initialized():
            return
        cuda = torch.cuda
        _keep_out_of_captures()
        self.clock = DeviceClock(lambda: cuda.Event(enable_timing=True), lambda: not cuda.is_current_stream_capturing())
        self.observe(self.host.backward_observers, self._observer)
        self.host.exposure.current_stream = cuda.current_stream
        self.recorder.device = self.clock.edge

    def _after_backward(self, _started: int, _ended: int) -> None:
        self._use(sys.modules["torch"].cuda.current_stream())

    def _use(self, stream: Any) -> None:
        self.host.exposure.compute_stream = stream
        if self.clock is not None:
            self.clock.stream = stream

    def translate(self, events: list[Event]) -> list[Event]:
        """Return what has happened, by the clock in use. On the drain thread."""
        if self.clock is None:
            return events
        if self.recorder.device is None:
            self.host.part_failed(self, RuntimeError("an event could not be recorded"))
            return [(LOST, 0, 0)]
        try:
            self.dropped = self.clock.dropped
            return self.clock.translate(events)
        except Exception as error:
            # A device in error answers no more; the intervals on its clock are gone.
            self.host.part_failed(self, error)
            return [(LOST, 0, 0)]


def _keep_out_of_captures() -> None:
    """Let this thread ask for events while another one captures a graph; otherwise that would end the capture.

    Raises:
        OSError, AttributeError: the runtime of CUDA or HIP that torch has loaded cannot be told.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    found = False
    for library, function in _RUNTIMES.items():
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if library in line}
        if paths:
            found = True
            mode = ctypes.c_int(_RELAXED)
            if getattr(ctypes.CDLL(min(paths)), function)(ctypes.byref(mode)):
                raise OSError(f"{function} failed")
    if not found:
        raise OSError("torch's device runtime is not a library of its own")
