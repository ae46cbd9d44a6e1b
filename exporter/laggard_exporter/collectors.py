"""Every collector: what it reads, what it emits, and how it is made. Flags, doctor and documents follow this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from laggard_exporter.conventions import NVML_FAMILIES, STATE_FAMILIES
from laggard_exporter.flags import Options
from laggard_exporter.hang.collector import HangCollector
from laggard_exporter.host import conventions as host
from laggard_exporter.host.disk import DiskCollector
from laggard_exporter.host.facts import HostCollector
from laggard_exporter.host.infiniband import InfinibandCollector
from laggard_exporter.host.oom import OomCollector
from laggard_exporter.host.pressure import PressureCollector
from laggard_exporter.nvml.collector import NvmlCollector
from laggard_exporter.nvml.workload import Workloads, live_ranks
from laggard_exporter.ranks import conventions as ranks
from laggard_exporter.ranks.cgroup import CgroupCollector
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.ranks.scheduling import SchedulingCollector
from laggard_exporter.ranks.state import StateCollector
from laggard_exporter.ranks.workers import WorkersCollector
from laggard_exporter.runner import Collector
from laggard_exporter.samples import Family


@dataclass(frozen=True)
class Entry:
    """One collector."""

    text: str
    """What it tells."""
    families: tuple[Family, ...]
    make: Callable[[Options], Collector]


#: By the name in flags and metrics.
COLLECTORS: dict[str, Entry] = {
    "nvml": Entry(
        "NVIDIA GPUs, through the driver's library",
        NVML_FAMILIES,
        lambda options: NvmlCollector(
            host=options.host,
            workloads=Workloads(lambda: live_ranks(RankFiles(options.state_directory)), options.procfs),
            kernel_log=options.shared_kernel_log,
            sysfs=options.sysfs,
            details=options.nvml_details,
        ),
    ),
    "state": Entry(
        "every rank on the node, from its state file",
        STATE_FAMILIES,
        lambda options: StateCollector(options.state_directory, procfs=options.procfs),
    ),
    "hang": Entry(
        "how far the collectives of each stalled rank have come, by its flight recorder",
        ranks.HANG_FAMILIES,
        lambda options: HangCollector(options.state_directory),
    ),
    "workers": Entry(
        "data workers of each rank: number, processor time, waits for disks",
        ranks.WORKERS_FAMILIES,
        lambda options: WorkersCollector(RankFiles(options.state_directory), options.procfs),
    ),
    "scheduling": Entry(
        "whether each rank gets the processors that it wants",
        ranks.SCHEDULING_FAMILIES,
        lambda options: SchedulingCollector(RankFiles(options.state_directory), options.procfs),
    ),
    "cgroup": Entry(
        "what the limits of its container or job cost each rank (control groups of version 2)",
        ranks.CGROUP_FAMILIES,
        lambda options: CgroupCollector(RankFiles(options.state_directory), options.procfs, options.sysfs),
    ),
    "host": Entry(
        "processors, memory and shared memory",
        host.FACTS_FAMILIES,
        lambda options: HostCollector(options.procfs, options.host),
    ),
    "pressure": Entry(
        "time in which tasks waited for processors, memory or disks",
        host.PRESSURE_FAMILIES,
        lambda options: PressureCollector(options.procfs, options.host),
    ),
    "oom": Entry(
        "processes killed for lack of memory, and whose they were",
        (*host.OOM_FAMILIES, *ranks.OOM_FAMILIES),
        lambda options: OomCollector(
            RankFiles(options.state_directory),
            options.procfs,
            options.host,
            options.shared_kernel_log,
        ),
    ),
    "disk": Entry(
        "operations, bytes and latency of disks",
        host.DISK_FAMILIES,
        lambda options: DiskCollector(options.procfs, options.host, options.devices["disk"]),
    ),
    "infiniband": Entry(
        "ports of InfiniBand, RoCE and EFA adapters: traffic, errors, congestion",
        host.INFINIBAND_FAMILIES,
        lambda options: InfinibandCollector(options.sysfs, options.host, options.devices["infiniband"]),
    ),
}
