"""Collector ``xe``: a backend for Intel's GPUs, by the files of their driver."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from laggard_exporter.entry import Entry
from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus import pci
from laggard_exporter.gpus.child_process import Batch, Child, Request
from laggard_exporter.gpus.collector import GpuCollector
from laggard_exporter.gpus.devices import Device
from laggard_exporter.gpus.reading import TableReader
from laggard_exporter.gpus.readings import Call, Reading
from laggard_exporter.gpus.session import Library, Question, Session
from laggard_exporter.gpus.worker import Worker
from laggard_exporter.gpus.workload import GpuWorkload
from laggard_exporter.samples import Sample

# Family, function, unit: from megahertz, from microjoules, from microwatts.
READINGS = (
    Reading(names.GPU_CLOCK, (Call("tile0/gt0/freq0/act_freq"),), (1_000_000, 1), 20_000, ("sm",)),
    Reading(names.GPU_CLOCK_MAX, (Call("tile0/gt0/freq0/max_freq"),), (1_000_000, 1), 20_000, ("sm",)),
    Reading(names.GPU_ENERGY, (Call("hwmon/hwmon*/energy1_input"),), (1, 1_000_000), 1 << 62),
    Reading(names.GPU_POWER_LIMIT, (Call("hwmon/hwmon*/power1_max"),), (1, 1_000_000), 10**11, unknown=0),
)
CALLS = tuple(source for reading in READINGS for source in reading.sources)


class XeCollector(GpuCollector[Device]):
    """Yields the metrics of Intel's GPUs."""

    name = "xe"
    families = names.session_families("xe", "the driver xe", "Intel")
    pci_kind = pci.Kind("0x8086", ("0x0300", "0x0380"))
    sources = ("xe", "pci_intel")

    def __init__(self, *, host: str, sysfs: Path) -> None:
        # The return codes are those of gpu_child.py.
        library = Library(
            "the driver xe",
            Request("open", None, (str(sysfs),)),
            open_status={2: "driver_not_loaded"},
            session_lost=frozenset(),
            device_lost=frozenset(),
            unsupported={1},
            no_permission=-1,
        )
        worker = Worker(lambda: Child(Path(__file__).with_name("gpu_child.py")))
        functions = ("count", "address", *(call.function for call in CALLS))
        session = Session(library, worker, functions)
        super().__init__(session, Request("count"), self._identify, host=host, sysfs=sysfs)
        self._reader = TableReader(READINGS)

    @property
    def rejected(self) -> Counter[str]:
        """Impossible values by metric."""
        return self._reader.rejected

    def read_driver(self) -> tuple[str, ...]:
        """Return the versions of driver, NVML and CUDA; xe is of the kernel's."""
        return ("", "", "")

    def ask(self, device: Device, index: int) -> Question:  # noqa: ARG002 - every GPU is asked the same
        """Ask a GPU for all of the table, without waiting."""
        return self._session.send(Batch([call.on(index) for call in CALLS]))

    def read(self, device: Device, question: Question, workloads: list[GpuWorkload]) -> list[Sample]:
        """Return what a GPU answers; which processes use it, the driver does not say."""
        answers = dict(zip(CALLS, self._session.receive(question), strict=True))
        workloads.append(GpuWorkload(device.uuid, [], []))
        return self._reader.read(device.uuid, answers)

    def _identify(self, index: int, seconds: float | None) -> Device | None:
        address = self._session.query(Request("address", index), seconds)
        uuid = f"PCI-{self._host}-{address}"
        return address and Device(uuid, (uuid, str(index), "", address, "", "", "", ""), index, address)


ENTRY = Entry(
    "Intel GPUs, by the files of the driver xe",
    (
        *XeCollector.families,
        names.GPU_DRIVER_INFO,
        names.GPU_DEVICES,
        names.GPU_INFO,
        names.GPU_UP,
        *(reading.family for reading in READINGS),
    ),
    lambda options: XeCollector(host=options.host, sysfs=options.sysfs),
)
