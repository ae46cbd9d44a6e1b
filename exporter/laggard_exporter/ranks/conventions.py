"""Every metric of the collectors that look at the processes of ranks. All carry run and rank."""

from __future__ import annotations

from typing import Literal

from laggard.shared.metrics import Attribute
from laggard.shared.names import prometheus_label
from laggard_exporter.hang.facts import MAX_GROUPS, MAX_PEERS
from laggard_exporter.samples import Family

IDENTITY = (prometheus_label(Attribute.RUN), prometheus_label(Attribute.RANK))


def _family(name: str, kind: Literal["counter", "gauge"], text: str, *labels: str) -> Family:
    return Family(f"training_process_{name}", kind, text, (*IDENTITY, *labels))


# Collector workers.
WORKERS = _family(
    "workers",
    "gauge",
    "Data workers of the rank by what the kernel says that they do; disk is a wait that nothing interrupts. "
    "Source: processes that torch (from 2.6) names pt_data_worker, /proc/PID/stat.",
    "state",
)
WORKER_CPU = _family(
    "worker_cpu_seconds_total",
    "counter",
    "Processor time of the rank's data workers, those that ended included. Source: /proc/PID/stat.",
)
WORKER_IO_WAIT = _family(
    "worker_io_wait_seconds_total",
    "counter",
    "Time that the rank's data workers waited for block devices, those that ended included; absent where the kernel "
    "does not count it (sysctl kernel.task_delayacct). Source: /proc/PID/stat.",
)

# Collector scheduling.
CPU = _family(
    "cpu_seconds_total",
    "counter",
    "Processor time of all threads of the rank's process, without its children. Source: /proc/PID/stat.",
    "mode",
)
RUN_DELAY = _family(
    "run_delay_seconds_total",
    "counter",
    "Time that the rank's main thread was ready to run and waited for a processor. Source: /proc/PID/schedstat.",
)
CPUS_ALLOWED = _family(
    "cpus_allowed",
    "gauge",
    "Logical processors on which the rank's main thread may run. Source: /proc/PID/status Cpus_allowed_list.",
)
CONTEXT_SWITCHES = _family(
    "context_switches_total",
    "counter",
    "Times that the rank's main thread gave its processor up, or lost it to another (involuntary). "
    "Source: /proc/PID/status.",
    "kind",
)
MAJOR_FAULTS = _family(
    "major_page_faults_total",
    "counter",
    "Accesses to memory of the rank's process that had to wait for a disk. Source: /proc/PID/stat.",
)

# Collector cgroup.
CGROUP_THROTTLED = _family(
    "cgroup_throttled_seconds_total",
    "counter",
    "Time that the rank's control group had used up its share of processors. Source: cpu.stat throttled_usec.",
)
CGROUP_PRESSURE = _family(
    "cgroup_pressure_seconds_total",
    "counter",
    "Time in which tasks of the rank's control group waited for the resource: some of them, or all that were not idle "
    "(full). Source: cpu.pressure, io.pressure, memory.pressure.",
    "resource",
    "tasks",
)
CGROUP_CPU_LIMIT = _family(
    "cgroup_cpu_limit",
    "gauge",
    "Processors that the rank's control group may use, the least of it and those above; absent without a limit. "
    "Source: cpu.max.",
)
CGROUP_MEMORY = _family(
    "cgroup_memory_used_bytes",
    "gauge",
    "Memory that the rank's control group uses, caches included. Source: memory.current.",
)
CGROUP_MEMORY_LIMIT = _family(
    "cgroup_memory_limit_bytes",
    "gauge",
    "Memory that the rank's control group may use, the least of it and those above; absent without a limit. "
    "Source: memory.max.",
)
CGROUP_OOM_KILLS = _family(
    "cgroup_oom_kills_total",
    "counter",
    "Processes that the kernel killed in the rank's control group for lack of memory. Source: memory.events oom_kill.",
)

# Collector oom.
OOM_KILLED = _family(
    "oom_kills_total",
    "counter",
    "Processes of the rank that the kernel killed for lack of memory: its own or a child. Source: /dev/kmsg.",
    "victim",
)

# Collector hang.
_GROUP = prometheus_label(Attribute.PROCESS_GROUP)
_HANG = "Only of a rank that shows no sign of progress. Source: torch's flight recorder."
HANG_ISSUED = _family(
    "hang_issued",
    "gauge",
    f"Number of the newest collective that the rank has issued on a process group, of the {MAX_GROUPS} that matter "
    f"most. {_HANG}",
    _GROUP,
)
HANG_PENDING = _family(
    "hang_pending",
    "gauge",
    "Number of the first collective on a process group that is not done on the rank; absent where all are. The call "
    "stands for the operation with the types and sizes to which all members must agree: of members at the same "
    f"number, one that differs calls something else. {_HANG}",
    _GROUP,
    prometheus_label(Attribute.COLLECTIVE_OPERATION),
    prometheus_label(Attribute.COLLECTIVE_CALL),
)
HANG_BEGUN = _family(
    "hang_begun",
    "gauge",
    "1 when the rank's device has begun to work on the first collective on a process group that is not done; absent "
    f"where none is, and with gloo, which does not say. {_HANG}",
    _GROUP,
)
HANG_TRANSFER = _family("hang_transfer", "gauge", f"1 while a send or a receive of the rank is not done. {_HANG}")
HANG_PEER = _family(
    "hang_peer",
    "gauge",
    f"1 for each rank to which a send of the rank, or from which a receive, is not done; {MAX_PEERS} at most. {_HANG}",
    "training_peer_rank",
)
HANG_DUMPS = Family(
    "laggard_exporter_hang_dumps",
    "gauge",
    "Dumps of stalled ranks by what became of them in this scrape: read, rejected (it cannot be used, the log says "
    "why), waiting (for the next scrape).",
    ("result",),
)

# The page of all ranks.
RANK_PAGES = Family(
    "laggard_exporter_rank_pages",
    "gauge",
    "Only at /ranks/metrics: live ranks that serve metrics, by what became of them in this scrape: merged, no_answer, "
    "rejected (the page is invalid, the log says why), not_listening (nothing of the rank's user listens on its port "
    "in the exporter's network), stopped (its process is).",
    ("result",),
)

WORKERS_FAMILIES = (WORKERS, WORKER_CPU, WORKER_IO_WAIT)
SCHEDULING_FAMILIES = (CPU, RUN_DELAY, CPUS_ALLOWED, CONTEXT_SWITCHES, MAJOR_FAULTS)
CGROUP_FAMILIES = (
    CGROUP_THROTTLED,
    CGROUP_PRESSURE,
    CGROUP_CPU_LIMIT,
    CGROUP_MEMORY,
    CGROUP_MEMORY_LIMIT,
    CGROUP_OOM_KILLS,
)
OOM_FAMILIES = (OOM_KILLED,)
HANG_FAMILIES = (HANG_ISSUED, HANG_PENDING, HANG_BEGUN, HANG_TRANSFER, HANG_PEER, HANG_DUMPS)
RANK_FAMILIES = (*WORKERS_FAMILIES, *SCHEDULING_FAMILIES, *CGROUP_FAMILIES, *OOM_FAMILIES, *HANG_FAMILIES)
