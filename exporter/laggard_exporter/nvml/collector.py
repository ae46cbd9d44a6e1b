"""Collector ``nvml``: the backend for NVIDIA's GPUs."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from laggard_exporter.entry import Entry
from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus import pci
from laggard_exporter.gpus.child_process import Request
from laggard_exporter.gpus.collector import Describe, GpuCollector
from laggard_exporter.gpus.session import AVAILABLE, ERROR, NO_ANSWER, RELEASED
from laggard_exporter.gpus.worker import Worker
from laggard_exporter.gpus.workload import GpuWorkload, Workloads, live_ranks
from laggard_exporter.kernel_log import KernelLog
from laggard_exporter.nvml import answers as asking
from laggard_exporter.nvml import devices, mig
from laggard_exporter.nvml.answers import Answers, Inquiry
from laggard_exporter.nvml.devices import NvidiaDevice
from laggard_exporter.nvml.library import Nvml, start
from laggard_exporter.nvml.plan import Plan
from laggard_exporter.nvml.processes import Processes
from laggard_exporter.nvml.reading import Reader
from laggard_exporter.nvml.table import DRIVER_FACTS
from laggard_exporter.nvml.xid import XidErrors
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.samples import Sample

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


class NvmlCollector(GpuCollector[NvidiaDevice]):
    """Yields the metrics of NVIDIA's GPUs.

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
    families = names.NVML
    pci_kind = pci.NVIDIA
    sources = ("nvml", "pci")
    status_log: ClassVar[Mapping[str, tuple[int, str]]] = {
        AVAILABLE: (logging.INFO, "NVML is available"),
        "library_not_found": (
            logging.INFO,
            "NVML is not installed (libnvidia-ml.so.1): no GPU metrics until it is",
        ),
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
        self._nvml = Nvml(worker or Worker(start), FUNCTIONS)
        identify = devices.Identify(self._nvml)
        super().__init__(self._nvml, devices.COUNT, identify, host=host, workloads=workloads, sysfs=sysfs, clock=clock)
        self._plan = Plan(details=details)
        self._reader = Reader(self._plan)
        self._processes = Processes(self._nvml, self._reader)
        self._xids = XidErrors(kernel_log or KernelLog())
        self._release = 0
        self._inquiries: dict[str, tuple[object, Inquiry]] = {}

    @property
    def rejected(self) -> Counter[str]:
        """Impossible values by metric."""
        return self._reader.rejected

    def about_session(self) -> Iterator[Sample]:
        """Yield whether XID errors are read from the kernel's log too."""
        yield Sample(names.KERNEL_LOG_READABLE, (), self._xids.is_log_readable)

    def read_driver(self) -> tuple[str, ...]:
        """Return the versions of the driver, of NVML and of CUDA."""
        driver, nvml, cuda = self._nvml.queries([Request(function) for function in DRIVER_FACTS.values()])
        self._release = _release(driver or "")
        return (driver or "", nvml or "", f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")

    def enumerated(self) -> None:
        """Ask for the events of the GPUs that there are."""
        added = [Request(_ADD, index) for index in self._devices.indices]
        self._nvml.queries([Request(_EVENTS), *added, Request(_WAIT)])

    def ask(self, device: NvidiaDevice, index: int) -> Answers:
        """Ask a GPU for all of the plan."""
        further = [*mig.requests(index), *self._processes.requests(index)]
        made_of = (device.links, device.fans, frozenset(device.substitutes), index, self._release, further)
        before, inquiry = self._inquiries.get(device.uuid, (None, None))
        if inquiry is None or made_of != before:
            inquiry = Inquiry(self._plan, device, index, self._release, further)
            self._inquiries[device.uuid] = made_of, inquiry
        return Answers(self._plan, self._nvml, device, inquiry)

    def read(self, device: NvidiaDevice, question: Answers, workloads: list[GpuWorkload]) -> list[Sample]:
        """Return what a GPU answers, and its MIG devices."""
        question.receive()
        values = self._reader.read(device, question)
        mode, most, running, percents = question.further
        parts = mig.devices(self._nvml, question.index, mode, most)
        values += mig.samples(self._nvml, self._reader, device.uuid, question.index, parts)
        processes = self._processes.read(question.index, running, percents, parts)
        workloads.append(GpuWorkload(device.uuid, [part.uuid for part in parts], processes))
        return values

    def take_events(self, last: Mapping[int, NvidiaDevice]) -> None:
        """Count the XID errors that events told."""
        for event in self._nvml.worker.pop_events():
            device = last.get(event.gpu)
            if device is not None:
                self._xids.report(device.pci, event.xid, event.time)

    def further(self, known: list[NvidiaDevice]) -> Iterator[Sample]:
        """Yield the XID errors, of GPUs that are lost too."""
        self.take_events(self._devices.last)
        self._xids.read_log()
        for device in known:
            yield from self._xids.samples(device.uuid, device.pci)


def _release(driver: str) -> int:
    """Return 580 for ``580.65.06``, and 0, the oldest, for what is no version."""
    release = driver.partition(".")[0]
    return int(release) if release.isdecimal() else 0


ENTRY = Entry(
    "NVIDIA GPUs, through the driver's library",
    (*names.NVML, names.KERNEL_LOG_READABLE, *names.GPU_FAMILIES),
    lambda options: NvmlCollector(
        host=options.host,
        workloads=Workloads(lambda: live_ranks(RankFiles(options.state_directory)), options.procfs),
        kernel_log=options.shared_kernel_log,
        sysfs=options.sysfs,
        details=options.nvml_details,
    ),
)
