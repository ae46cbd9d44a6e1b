"""Keeps a session with NVML, where there is one, and reads every GPU at each scrape."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from types import ModuleType

from laggard_exporter import conventions
from laggard_exporter.nvml import devices, reading
from laggard_exporter.nvml.devices import Device, Devices
from laggard_exporter.nvml.library import AVAILABLE, ERROR, STATUSES, DeviceLostError, Nvml, SessionLostError
from laggard_exporter.nvml.table import DRIVER_FACTS
from laggard_exporter.samples import Sample

#: Where NVML can not be opened it is tried again after so many seconds: a driver may be loaded at any time.
RETRY_SECONDS = 30

#: Every function whose failures are counted.
FUNCTIONS = (*DRIVER_FACTS.values(), *devices.FUNCTIONS, *reading.FUNCTIONS)

_STATUS_LOG = {
    AVAILABLE: (logging.INFO, "NVML is available"),
    "library_not_found": (logging.INFO, "NVML is not installed (libnvidia-ml.so.1): no GPU metrics until it is"),
    "driver_not_loaded": (logging.INFO, "the NVIDIA driver is not loaded: no GPU metrics until it is"),
    "version_mismatch": (
        logging.WARNING,
        "NVML and the loaded driver are of different versions: reload the driver or reboot, then restart the exporter",
    ),
    "no_permission": (logging.WARNING, "no permission to use NVML: give the exporter access to /dev/nvidiactl"),
    ERROR: (logging.WARNING, "NVML does not work: look for the NVIDIA driver in the kernel log"),
}

_logger = logging.getLogger(__name__)


class NvmlCollector:
    """Yields the GPU metrics. ``library`` is the module of nvidia-ml-py, ``clock`` counts seconds.

    A node without NVML is a normal one: the collector says so in its metrics and in the log, and looks again later.
    """

    name = "nvml"

    def __init__(self, library: ModuleType, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = Nvml(library, FUNCTIONS)
        self._devices = Devices(self._nvml, clock)
        self._reader = reading.Reader(self._nvml)
        self._clock = clock
        self._status: str | None = None
        self._retry_at = 0.0
        self._driver_facts: tuple[str, ...] | None = None

    def collect(self) -> Iterator[Sample]:
        """Yield the GPUs, the state of the session and what went wrong."""
        yield from self._gpus()
        yield Sample(conventions.NVML_AVAILABLE, (), self._status == AVAILABLE)
        for status in STATUSES:
            yield Sample(conventions.NVML_STATUS, (status,), status == self._status)
        for function, count in self._nvml.errors.items():
            yield Sample(conventions.NVML_ERRORS, (function,), count)
        for metric, count in self._reader.rejected.items():
            yield Sample(conventions.NVML_VALUES_REJECTED, (metric,), count)

    def _gpus(self) -> list[Sample]:
        # Twice: a session that the driver ended since the last scrape is replaced at once.
        for _ in range(2):
            if not self._open():
                return []
            try:
                return list(self._read())
            except SessionLostError:
                self._close()
        self._set_status(ERROR)
        return []

    def _open(self) -> bool:
        if self._status != AVAILABLE and self._clock() >= self._retry_at:
            self._set_status(self._nvml.open())
        return self._status == AVAILABLE

    def _close(self) -> None:
        self._nvml.close()
        self._devices.forget_handles()
        self._driver_facts = None
        self._status = None

    def _set_status(self, status: str) -> None:
        if status != AVAILABLE:
            self._retry_at = self._clock() + RETRY_SECONDS
        if status != self._status:
            level, message = _STATUS_LOG[status]
            _logger.log(level, "%s", message)
        self._status = status

    def _read(self) -> Iterator[Sample]:
        if self._driver_facts is None:
            self._driver_facts = self._read_driver()
        yield Sample(conventions.GPU_DRIVER_INFO, self._driver_facts, 1)
        release = _release(self._driver_facts[0])
        count, known = self._devices.refresh()
        if count is not None:
            yield Sample(conventions.GPU_DEVICES, ("nvml",), count)
        for device in known:
            values = self._read_device(device, release)
            yield Sample(conventions.GPU_INFO, device.facts, 1)
            yield Sample(conventions.GPU_UP, (device.uuid,), bool(values))
            yield from values

    def _read_driver(self) -> tuple[str, ...]:
        driver, nvml, cuda = (self._nvml.query(function) for function in DRIVER_FACTS.values())
        return (driver or "", nvml or "", f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")

    def _read_device(self, device: Device, driver_release: int) -> list[Sample]:
        if device.handle is None:
            return []
        try:
            return list(self._reader.read(device.uuid, device.handle, driver_release))
        except DeviceLostError:
            device.handle = None
            return []


def _release(driver: str) -> int:
    """Return 580 for ``580.65.06``, and 0, the oldest, for what is no version."""
    release = driver.partition(".")[0]
    return int(release) if release.isdecimal() else 0
