"""Keeps a session with NVML, where there is one, and reads every GPU at each scrape."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from laggard_exporter.entry import Entry
from laggard_exporter.kernel_log import KernelLog
from laggard_exporter.nvml import answers as asking
from laggard_exporter.nvml import conventions as names
from laggard_exporter.nvml import devices, mig, pci
from laggard_exporter.nvml.answers import Answers
from laggard_exporter.nvml.child_process import DiedError, HangError, OutOfTimeError, Request
from laggard_exporter.nvml.devices import Device, Devices
from laggard_exporter.nvml.library import (
    AVAILABLE,
    ERROR,
    NO_ANSWER,
    RELEASED,
    STATUSES,
    DeviceLostError,
    Nvml,
    SessionLostError,
)
from laggard_exporter.nvml.plan import Plan
from laggard_exporter.nvml.processes import GpuWorkload, Processes
from laggard_exporter.nvml.reading import Reader
from laggard_exporter.nvml.table import DRIVER_FACTS
from laggard_exporter.nvml.worker import StuckError, Worker
from laggard_exporter.nvml.workload import Workloads, live_ranks
from laggard_exporter.nvml.xid import XidErrors
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.samples import PartialFailureError, Sample

#: Where NVML cannot be opened it is tried again after so many seconds: a driver may be loaded at any time.
RETRY_SECONDS = 30
#: A scrape waits so long for NVML in all, whatever hangs.
SCRAPE_SECONDS = 5.0
#: So many times a scrape begins again with a new session or a new process.
ATTEMPTS = 4

# The child makes a set of events, adds each GPU, and waits for events from then on.
_EVENTS, _ADD, _WAIT = "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"

#: Every function whose failures are counted.
FUNCTIONS = tuple(
    dict.fromkeys(
        (
            *DRIVER_FACTS.values(),
            *devices.FUNCTIONS,
            *asking.FUNCTIONS,
            *mig.FUNCTIONS,
            *Processes.FUNCTIONS,
            _EVENTS,
            _ADD,
            _WAIT,
        )
    )
)

_STATUS_LOG = {
    AVAILABLE: (logging.INFO, "NVML is available"),
    "library_not_found": (logging.INFO, "NVML is not installed (libnvidia-ml.so.1): no GPU metrics until it is"),
    "driver_not_loaded": (logging.INFO, "the NVIDIA driver is not loaded: no GPU metrics until it is"),
    "version_mismatch": (
        logging.WARNING,
        "NVML and the loaded driver are of different versions: reload the driver or reboot",
    ),
    "no_permission": (logging.WARNING, "no permission to use NVML: give the exporter access to /dev/nvidiactl"),
    NO_ANSWER: (logging.ERROR, "NVML does not answer: no GPU metrics until it does; look at the kernel log"),
    RELEASED: (logging.WARNING, "the GPUs' driver is released: no GPU metrics until SIGUSR2 or a restart"),
    ERROR: (logging.WARNING, "NVML does not work: look for the NVIDIA driver in the kernel log"),
}

_logger = logging.getLogger(__name__)


#: Makes samples of what runs on the GPUs.
Describe = Callable[[list[GpuWorkload]], Iterable[Sample]]


class NvmlCollector:
    """Yields the GPU metrics.

    A node without NVML is a normal one: the collector says so in its metrics and in the log, and looks again later.

    Args:
        worker: runs NVML.
        host: the node's name, on what is said of its driver.
        workloads: tells what the processes on the GPUs belong to.
        kernel_log: where XID errors are read too.
        sysfs: shows the PCI bus.
        details: reads what a search for a fault in hardware needs as well.
        clock: counts seconds, for what is tried again later.
    """

    name = "nvml"

    def __init__(
        self,
        worker: Worker | None = None,
        *,
        host: str,
        workloads: Describe | None = None,
        kernel_log: KernelLog | None = None,
        sysfs: Path = pci.SYSFS,
        details: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = Nvml(worker or Worker(), FUNCTIONS)
        self._devices = Devices(self._nvml, clock)
        self._plan = Plan(details=details)
        self._reader = Reader(self._plan)
        self._processes = Processes(self._nvml, self._reader)
        self._xids = XidErrors(kernel_log or KernelLog())
        self._host = host
        self._workloads = workloads
        self._sysfs = sysfs
        self._clock = clock
        self.released = False
        """Whether the driver is left alone, so that it can be unloaded: from the next run on."""
        self._status: str | None = None
        self._logged_status: str | None = None
        self._retry_at = 0.0
        self._driver_facts: tuple[str, ...] | None = None

    def collect(self) -> Iterator[Sample]:
        """Yield the GPUs, the state of the session and what went wrong.

        Raises :class:`~laggard_exporter.samples.PartialFailureError` at the end when NVML, or a GPU, did not answer.
        """
        self._nvml.begin(time.monotonic() + SCRAPE_SECONDS)
        yield from self._gpus()
        if (count := pci.count_gpus(self._sysfs)) is not None:
            yield Sample(names.GPU_DEVICES, ("pci",), count)
        yield Sample(names.NVML_AVAILABLE, (), self._status == AVAILABLE)
        for status in STATUSES:
            yield Sample(names.NVML_STATUS, (status, self._host), status == self._status)
        for function, count in self._nvml.errors.items():
            yield Sample(names.NVML_ERRORS, (function,), count)
        for function, count in self._nvml.timeouts.items():
            yield Sample(names.NVML_CALL_TIMEOUTS, (function,), count)
        for metric, count in self._reader.rejected.items():
            yield Sample(names.NVML_VALUES_REJECTED, (metric,), count)
        yield Sample(names.NVML_STUCK_PROCESSES, (), self._nvml.worker.stuck)
        yield Sample(names.KERNEL_LOG_READABLE, (), self._xids.is_log_readable)
        if self._status == NO_ANSWER:
            raise PartialFailureError("NVML does not answer")
        if self._devices.quarantined and not self.released:
            raise PartialFailureError("a GPU does not answer in time")

    def close(self) -> None:
        """End the process that NVML runs in."""
        self._nvml.close()

    def _gpus(self) -> list[Sample]:
        if self.released:
            if self._status != RELEASED:
                self._close()
                self._set_status(RELEASED)
                self._retry_at = 0.0
            return []
        # Several times: a session that the driver ended since the last scrape is replaced at once, and the other GPUs
        # are read after one that hangs.
        for _ in range(ATTEMPTS):
            samples = self._attempt()
            if samples is not None:
                return samples
        self._close()
        self._set_status(ERROR)
        return []

    def _attempt(self) -> list[Sample] | None:
        """Return the samples, none where NVML has no answer, and None where it is worth to begin again at once."""
        try:
            return list(self._read()) if self._open() else []
        except SessionLostError:
            self._close()
        except (HangError, DiedError) as error:
            self._forget()
            if error.request.gpu is None:
                self._set_status(NO_ANSWER if isinstance(error, HangError) else ERROR)
                return []
            self._devices.quarantine(error.request.gpu)
        except (OutOfTimeError, StuckError):
            self._set_status(NO_ANSWER)
            # A call that takes longer goes on, and the next scrape waits for it.
            self._retry_at = 0.0
            return []
        return None

    def _open(self) -> bool:
        if self._status != AVAILABLE and self._clock() >= self._retry_at:
            self._forget()
            self._set_status(self._nvml.open())
        return self._status == AVAILABLE

    def _close(self) -> None:
        self._nvml.close()
        self._forget()

    def _forget(self) -> None:
        self._devices.forget_handles()
        self._driver_facts = None
        self._status = None

    def _set_status(self, status: str) -> None:
        if status != AVAILABLE:
            self._retry_at = self._clock() + RETRY_SECONDS
        if status != self._logged_status:
            level, message = _STATUS_LOG[status]
            _logger.log(level, "%s", message)
        self._status = self._logged_status = status

    def _read(self) -> Iterator[Sample]:
        if self._driver_facts is None:
            self._driver_facts = self._read_driver()
        yield Sample(names.GPU_DRIVER_INFO, self._driver_facts, 1)
        release = _release(self._driver_facts[0])
        last = dict(self._devices.last)
        count, known, changed = self._devices.refresh()
        # What is reported by now has the indices from before.
        self._count_xids(last)
        if count is not None:
            yield Sample(names.GPU_DEVICES, ("nvml",), count)
        if changed:
            added = [Request(_ADD, index) for index in self._devices.indices]
            self._nvml.queries([Request(_EVENTS), *added, Request(_WAIT)])
        workloads: list[GpuWorkload] = []
        waiting = deque(device for device in known if device.index is not None)
        asked = self._query(waiting, release)
        for device in known:
            values: list[Sample] = []
            if asked is not None and device is asked[0]:
                # The next GPU is asked before this one is looked at: two processes work at the same time.
                answers, asked = asked[1], self._query(waiting, release)
                values = self._read_device(device, answers, workloads)
            yield Sample(names.GPU_INFO, device.facts, 1)
            yield Sample(names.GPU_UP, (device.uuid,), bool(values))
            yield from values
        yield from self._read_xids(known)
        if self._workloads is not None:
            yield from self._workloads(workloads)

    def _read_driver(self) -> tuple[str, ...]:
        driver, nvml, cuda = self._nvml.queries([Request(function) for function in DRIVER_FACTS.values()])
        return (driver or "", nvml or "", f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "", self._host)

    def _query(self, waiting: deque[Device], release: int) -> tuple[Device, Answers] | None:
        while waiting:
            device = waiting.popleft()
            if (index := device.index) is not None:
                further = [*mig.requests(index), *self._processes.requests(index)]
                return device, Answers(self._plan, self._nvml, device, index, release, further=further)
        return None

    def _read_device(self, device: Device, answers: Answers, workloads: list[GpuWorkload]) -> list[Sample]:
        try:
            answers.receive()
            values = self._reader.read(device, answers)
            mode, most, running, percents = answers.further
            parts = mig.devices(self._nvml, answers.index, mode, most)
            values += mig.samples(self._nvml, self._reader, device.uuid, answers.index, parts)
            processes = self._processes.read(answers.index, running, percents, parts)
        except DeviceLostError:
            device.index = None
            return []
        self._devices.answered(answers.index)
        workloads.append(GpuWorkload(device.uuid, [part.uuid for part in parts], processes))
        return values

    def _count_xids(self, devices: Mapping[int, Device]) -> None:
        for event in self._nvml.worker.pop_events():
            device = devices.get(event.gpu)
            if device is not None:
                self._xids.report(device.pci, event.xid, event.time)

    def _read_xids(self, known: list[Device]) -> Iterator[Sample]:
        self._count_xids(self._devices.last)
        self._xids.read_log()
        for device in known:
            yield from self._xids.samples(device.uuid, device.pci)


def _release(driver: str) -> int:
    """Return 580 for ``580.65.06``, and 0, the oldest, for what is no version."""
    release = driver.partition(".")[0]
    return int(release) if release.isdecimal() else 0


ENTRY = Entry(
    "NVIDIA GPUs, through the driver's library",
    (*names.SESSION_FAMILIES, *names.GPU_FAMILIES),
    lambda options: NvmlCollector(
        host=options.host,
        workloads=Workloads(lambda: live_ranks(RankFiles(options.state_directory)), options.procfs),
        kernel_log=options.shared_kernel_log,
        sysfs=options.sysfs,
        details=options.nvml_details,
    ),
)
