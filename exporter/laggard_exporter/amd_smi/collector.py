"""Collector ``amd_smi``: the backend for AMD's GPUs."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from laggard_exporter.amd_smi import table
from laggard_exporter.amd_smi.library import AMD_SMI, start
from laggard_exporter.amd_smi.reading import Reader
from laggard_exporter.entry import Entry
from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus import pci
from laggard_exporter.gpus.child_process import Batch, Request
from laggard_exporter.gpus.collector import RETRY_SECONDS, Describe, GpuCollector
from laggard_exporter.gpus.devices import Device
from laggard_exporter.gpus.readings import Call
from laggard_exporter.gpus.session import (
    AVAILABLE,
    ERROR,
    NO_ANSWER,
    RELEASED,
    DeviceLostError,
    Question,
    Session,
)
from laggard_exporter.gpus.worker import Worker
from laggard_exporter.gpus.workload import GpuProcess, GpuWorkload, Workloads, live_ranks
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Sample

_MEMORY_MAX = 1 << 50
_UNIQUE_ID = re.compile("(?:0x)?([0-9a-f]{1,16})")


@dataclass
class AmdDevice(Device):
    """One GPU of AMD."""

    driver: str = ""


class AmdSmiCollector(GpuCollector[AmdDevice]):
    """Yields the metrics of AMD's GPUs.

    Args:
        worker: runs AMD SMI.
        host: the node's name, on what is said of its driver.
        workloads: tells what the processes on the GPUs belong to.
        sysfs: shows the PCI bus.
        clock: counts seconds, for what is tried again later.
    """

    name = "amd_smi"
    families = names.AMD_SMI
    pci_kind = pci.AMD_ACCELERATORS
    sources = ("amd_smi", "pci_amd")
    status_log: ClassVar[Mapping[str, tuple[int, str]]] = {
        AVAILABLE: (logging.INFO, "AMD SMI is available"),
        "library_not_found": (
            logging.INFO,
            "AMD SMI is not installed (libamd_smi.so, in $ROCM_PATH/lib or /opt/rocm/lib): no metrics of AMD's GPUs",
        ),
        "driver_not_loaded": (logging.INFO, "the amdgpu driver is not loaded: no metrics of AMD's GPUs until it is"),
        "version_unknown": (
            logging.WARNING,
            "AMD SMI is of a version whose structures are unknown: install ROCm 6.2 or newer",
        ),
        "no_permission": (logging.WARNING, "no permission to use AMD SMI: add the exporter to the group render"),
        NO_ANSWER: (logging.ERROR, "AMD SMI does not answer: no metrics of AMD's GPUs until it does"),
        RELEASED: (logging.WARNING, "the amdgpu driver is released: no metrics of its GPUs until SIGUSR2 or a restart"),
        ERROR: (logging.WARNING, "AMD SMI does not work: look for amdgpu in the kernel log"),
    }

    def __init__(
        self,
        worker: Worker | None = None,
        *,
        host: str,
        workloads: Describe | None = None,
        sysfs: Path = pci.SYSFS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        session = Session(AMD_SMI, worker or Worker(start), table.FUNCTIONS)
        super().__init__(session, table.COUNT, self._identify, host=host, workloads=workloads, sysfs=sysfs, clock=clock)
        self._reader = Reader()
        self._with_metrics: set[str] = set()
        self._reopen_at = 0.0

    @property
    def rejected(self) -> Counter[str]:
        """Impossible values by metric."""
        return self._reader.rejected

    def collect(self) -> Iterator[Sample]:
        """Yield the GPUs, the state of the session and what went wrong.

        Raises :class:`~laggard_exporter.runner.UnsupportedError` on a node without AMD's GPUs.
        """
        # The library reads sysfs itself.
        if not pci.count_gpus(pci.AMD, self._sysfs):
            raise UnsupportedError("the PCI bus shows no GPU of AMD")
        self._reopen()
        yield from super().collect()

    def _reopen(self) -> None:
        """Open the library again, now and then, while no GPU answers: it looks for them at its start alone."""
        if self._devices.is_none_left and self._clock() >= self._reopen_at:
            self._close()
            self._reopen_at = self._clock() + RETRY_SECONDS

    def read_driver(self) -> tuple[str, ...]:
        """Return the version of the driver; the other labels are of NVIDIA's."""
        return (next((device.driver for device in self._devices.last.values() if device.driver), ""), "", "")

    def ask(self, device: AmdDevice, index: int) -> Question:  # noqa: ARG002 - every GPU is asked the same
        """Ask a GPU for all of the table."""
        return self._session.send(_batch(index))

    def read(self, device: AmdDevice, question: Question, workloads: list[GpuWorkload]) -> list[Sample]:
        """Return what a GPU answers. One that answered for its metrics before and does not is lost."""
        *values, processes = self._session.receive(question)
        answers = dict(zip(table.CALLS, values, strict=True))
        if answers[Call(table.METRICS)] is not None:
            self._with_metrics.add(device.uuid)
        elif device.uuid in self._with_metrics:
            raise DeviceLostError
        samples = self._reader.read(device.uuid, answers)
        found = [
            GpuProcess(pid, "", memory if memory is not None and memory <= _MEMORY_MAX else None)
            for pid, memory in processes or ()
        ]
        workloads.append(GpuWorkload(device.uuid, [], found))
        return samples

    def _identify(self, index: int, seconds: float | None) -> AmdDevice | None:
        calls = tuple(dict.fromkeys(call.whole for call in (*table.FACTS.values(), table.DRIVER)))
        answers = dict(zip(calls, self._session.queries([call.on(index) for call in calls], seconds), strict=True))
        facts = {label: _fact(answers[call.whole], call) for label, call in table.FACTS.items()}
        if not facts["pci_bus_id"]:
            return None
        found = _UNIQUE_ID.fullmatch(facts["serial"].lower())
        # As ROCm calls it; a GPU of a desktop or a virtual machine may have no identity of its own, and each host has a
        # GPU at the same address.
        digits = found[1].zfill(16) if found and int(found[1], 16) else ""
        facts["serial"] = digits
        uuid = f"GPU-{digits}" if digits else f"PCI-{self._host}-{facts['pci_bus_id']}"
        labels = (facts[label] for label in ("name", "pci_bus_id", "serial", "vbios"))
        node = facts["numa_node"].removeprefix("-1")
        return AmdDevice(
            uuid, (uuid, str(index), *labels, "", node), index, facts["pci_bus_id"], answers[table.DRIVER] or ""
        )


@cache
def _batch(index: int) -> Batch:
    return Batch([*(call.on(index) for call in table.CALLS), Request(table.PROCESSES, index)])


def _fact(answer: Any, call: Call) -> str:
    if answer is None:
        return ""
    return str(answer if call.attribute is None else answer[call.attribute])


ENTRY = Entry(
    "AMD GPUs, through ROCm's AMD SMI",
    (*names.AMD_SMI, *table.FAMILIES),
    lambda options: AmdSmiCollector(
        host=options.host,
        workloads=Workloads(lambda: live_ranks(RankFiles(options.state_directory)), options.procfs),
        sysfs=options.sysfs,
    ),
)
