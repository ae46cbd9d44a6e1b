"""Every metric of the host's collectors. All carry ``host_name``, as the ranks call their host."""

from __future__ import annotations

from typing import Literal

from laggard_exporter.samples import Family

HOST = "host_name"


def _family(name: str, kind: Literal["counter", "gauge"], text: str, *labels: str) -> Family:
    return Family(f"host_{name}", kind, text, (HOST, *labels))


# Collector pressure.
PRESSURE = _family(
    "pressure_seconds_total",
    "counter",
    "Time in which tasks waited for the resource: some of them, or all that were not idle (full). "
    "Source: /proc/pressure. Full is not defined for the processors of a whole host.",
    "resource",
    "tasks",
)

# Collector oom.
OOM_KILLS = _family(
    "oom_kills_total", "counter", "Processes that the kernel killed for lack of memory. Source: /proc/vmstat oom_kill."
)

# Collector disk.
DISK_OPERATIONS = _family(
    "disk_operations_total",
    "counter",
    "Operations that the disk completed. Source: /proc/diskstats.",
    "device",
    "direction",
)
DISK_OPERATION_TIME = _family(
    "disk_operation_seconds_total",
    "counter",
    "Time that completed operations took, waiting included; over the operations it is their mean latency. "
    "Source: /proc/diskstats.",
    "device",
    "direction",
)
DISK_BYTES = _family(
    "disk_bytes_total", "counter", "Bytes that were read and written. Source: /proc/diskstats.", "device", "direction"
)
DISK_BUSY_TIME = _family(
    "disk_io_seconds_total", "counter", "Time in which the disk had work. Source: /proc/diskstats.", "device"
)

# Collector host.
CPU_COUNT = _family("logical_cpus", "gauge", "Logical processors that are online. Source: /proc/stat.")
CPU_TIME = _family(
    "cpu_seconds_total", "counter", "Time of all processors by what they did. Source: /proc/stat.", "mode"
)
MEMORY_CAPACITY = _family("memory_capacity_bytes", "gauge", "Memory of the host. Source: /proc/meminfo MemTotal.")
MEMORY_AVAILABLE = _family(
    "memory_available_bytes",
    "gauge",
    "Memory that can be had without swapping. Source: /proc/meminfo MemAvailable.",
)
SWAP_CAPACITY = _family("swap_capacity_bytes", "gauge", "Swap space. Source: /proc/meminfo SwapTotal.")
SWAP_FREE = _family("swap_free_bytes", "gauge", "Swap space not in use. Source: /proc/meminfo SwapFree.")
SHARED_MEMORY_CAPACITY = _family(
    "shared_memory_capacity_bytes",
    "gauge",
    "Size of /dev/shm, through which data workers hand over batches; node_exporter leaves it out.",
)
SHARED_MEMORY_FREE = _family(
    "shared_memory_free_bytes", "gauge", "What is free in /dev/shm; data workers that find none die with a bus error."
)

# Collector infiniband: the ports of InfiniBand, RoCE and EFA adapters.
PORT = ("device", "port")
IB_INFO = _family(
    "infiniband_info",
    "gauge",
    "1, with the facts of a port. Source: /sys/class/infiniband link_layer, fw_ver, hca_type, device/numa_node.",
    *PORT,
    "link_layer",
    "firmware",
    "adapter",
    "numa_node",
)
IB_UP = _family(
    "infiniband_link_up",
    "gauge",
    "1 while the port is active. Source: /sys/class/infiniband state.",
    *PORT,
)
IB_RATE = _family(
    "infiniband_rate_bytes_per_second",
    "gauge",
    "Speed of the link, one direction. Source: /sys/class/infiniband rate.",
    *PORT,
)
IB_RECEIVED = _family(
    "infiniband_receive_bytes_total",
    "counter",
    "Bytes received. Source: counters/port_rcv_data times 4, for EFA hw_counters/rx_bytes.",
    *PORT,
)
IB_TRANSMITTED = _family(
    "infiniband_transmit_bytes_total",
    "counter",
    "Bytes sent. Source: counters/port_xmit_data times 4, for EFA hw_counters/tx_bytes.",
    *PORT,
)
IB_RECEIVED_PACKETS = _family(
    "infiniband_receive_packets_total",
    "counter",
    "Packets received. Source: counters/port_rcv_packets, for EFA hw_counters/rx_pkts.",
    *PORT,
)
IB_TRANSMITTED_PACKETS = _family(
    "infiniband_transmit_packets_total",
    "counter",
    "Packets sent. Source: counters/port_xmit_packets, for EFA hw_counters/tx_pkts.",
    *PORT,
)
IB_TRANSMIT_WAIT = _family(
    "infiniband_transmit_wait_total",
    "counter",
    "Ticks in which data waited to be sent for lack of credits: congestion. Source: counters/port_xmit_wait.",
    *PORT,
)
IB_ERRORS = _family(
    "infiniband_errors_total",
    "counter",
    "Errors by kind. Source: the file of that name in counters or hw_counters.",
    *PORT,
    "error",
)
IB_CONGESTION = _family(
    "infiniband_congestion_packets_total",
    "counter",
    "Packets of congestion control (ECN marks, CNP) by kind. Source: the file of that name in hw_counters.",
    *PORT,
    "kind",
)

PRESSURE_FAMILIES = (PRESSURE,)
OOM_FAMILIES = (OOM_KILLS,)
DISK_FAMILIES = (DISK_OPERATIONS, DISK_OPERATION_TIME, DISK_BYTES, DISK_BUSY_TIME)
FACTS_FAMILIES = (
    CPU_COUNT,
    CPU_TIME,
    MEMORY_CAPACITY,
    MEMORY_AVAILABLE,
    SWAP_CAPACITY,
    SWAP_FREE,
    SHARED_MEMORY_CAPACITY,
    SHARED_MEMORY_FREE,
)
INFINIBAND_FAMILIES = (
    IB_INFO,
    IB_UP,
    IB_RATE,
    IB_RECEIVED,
    IB_TRANSMITTED,
    IB_RECEIVED_PACKETS,
    IB_TRANSMITTED_PACKETS,
    IB_TRANSMIT_WAIT,
    IB_ERRORS,
    IB_CONGESTION,
)
HOST_FAMILIES = (*PRESSURE_FAMILIES, *OOM_FAMILIES, *DISK_FAMILIES, *FACTS_FAMILIES, *INFINIBAND_FAMILIES)
