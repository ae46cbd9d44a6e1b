"""Collector ``infiniband``: the ports of InfiniBand, RoCE and EFA adapters, as ``/sys/class/infiniband`` shows them.

Files and meanings: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband, for hw_counters of
mlx5 https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters, for EFA
the driver's documentation. Which there are depends on adapter and driver: what is not there is absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from laggard_exporter import files
from laggard_exporter.entry import Entry
from laggard_exporter.filters import Filter
from laggard_exporter.host.families import family
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Family, Sample

PORT = ("device", "port")
IB_INFO = family(
    "infiniband_info",
    "gauge",
    "1, with the facts of a port. Source: /sys/class/infiniband link_layer, fw_ver, hca_type, device/numa_node.",
    *PORT,
    "link_layer",
    "firmware",
    "adapter",
    "numa_node",
)
IB_UP = family(
    "infiniband_link_up",
    "gauge",
    "1 while the port is active. Source: /sys/class/infiniband state.",
    *PORT,
)
IB_RATE = family(
    "infiniband_rate_bytes_per_second",
    "gauge",
    "Speed of the link, one direction. Source: /sys/class/infiniband rate.",
    *PORT,
)
IB_RECEIVED = family(
    "infiniband_receive_bytes_total",
    "counter",
    "Bytes received. Source: counters/port_rcv_data times 4, for EFA hw_counters/rx_bytes.",
    *PORT,
)
IB_TRANSMITTED = family(
    "infiniband_transmit_bytes_total",
    "counter",
    "Bytes sent. Source: counters/port_xmit_data times 4, for EFA hw_counters/tx_bytes.",
    *PORT,
)
IB_RECEIVED_PACKETS = family(
    "infiniband_receive_packets_total",
    "counter",
    "Packets received. Source: counters/port_rcv_packets, for EFA hw_counters/rx_pkts.",
    *PORT,
)
IB_TRANSMITTED_PACKETS = family(
    "infiniband_transmit_packets_total",
    "counter",
    "Packets sent. Source: counters/port_xmit_packets, for EFA hw_counters/tx_pkts.",
    *PORT,
)
IB_TRANSMIT_WAIT = family(
    "infiniband_transmit_wait_total",
    "counter",
    "Ticks in which data waited to be sent for lack of credits: congestion. Source: counters/port_xmit_wait.",
    *PORT,
)
IB_ERRORS = family(
    "infiniband_errors_total",
    "counter",
    "Errors by kind. Source: the file of that name in counters or hw_counters.",
    *PORT,
    "error",
)
IB_CONGESTION = family(
    "infiniband_congestion_packets_total",
    "counter",
    "Packets of congestion control (ECN marks, CNP) by kind. Source: the file of that name in hw_counters.",
    *PORT,
    "kind",
)

#: A data counter counts words of this many bytes.
WORD = 4

#: Of the standard port counters and of EFA's: family, file, factor. The first file that is there wins.
TRAFFIC: tuple[tuple[Family, tuple[tuple[str, int], ...]], ...] = (
    (IB_RECEIVED, (("counters/port_rcv_data", WORD), ("hw_counters/rx_bytes", 1))),
    (IB_TRANSMITTED, (("counters/port_xmit_data", WORD), ("hw_counters/tx_bytes", 1))),
    (IB_RECEIVED_PACKETS, (("counters/port_rcv_packets", 1), ("hw_counters/rx_pkts", 1))),
    (IB_TRANSMITTED_PACKETS, (("counters/port_xmit_packets", 1), ("hw_counters/tx_pkts", 1))),
    (IB_TRANSMIT_WAIT, (("counters/port_xmit_wait", 1),)),
)

#: Errors and retransmissions that slow a job down or announce a bad cable.
ERRORS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/port_rcv_switch_relay_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/out_of_sequence",
    "hw_counters/out_of_buffer",
    "hw_counters/packet_seq_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/rx_icrc_encapsulated",
    "hw_counters/roce_adp_retrans",
    "hw_counters/roce_adp_retrans_to",
    "hw_counters/roce_slow_restart",
    # EFA
    "hw_counters/rx_drops",
    "hw_counters/retrans_pkts",
    "hw_counters/retrans_timeout_events",
    "hw_counters/unresponsive_remote_events",
    "hw_counters/impaired_remote_conn_events",
)

CONGESTION = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored")

#: ``4: ACTIVE`` in the file ``state``.
_ACTIVE = "4"

_GIGABIT_IN_BYTES = 125_000_000


class InfinibandCollector:
    """Yields the ports of the adapters that ``devices`` admits."""

    name = "infiniband"

    def __init__(self, sysfs: Path, host: str, devices: Filter) -> None:
        self._folder = sysfs / "class" / "infiniband"
        self._host = host
        self._devices = devices

    def collect(self) -> Iterator[Sample]:
        """Yield state, traffic, errors and congestion of each port."""
        adapters = files.names(self._folder)
        if not adapters:
            raise UnsupportedError(
                f"{self._folder} is empty: no InfiniBand, RoCE or EFA adapter, or its driver is not loaded"
            )
        for adapter in filter(self._devices.admits, adapters):
            for port in files.names(self._folder / adapter / "ports"):
                yield from self._port(self._folder / adapter, self._folder / adapter / "ports" / port)

    def _port(self, adapter: Path, port: Path) -> Iterator[Sample]:
        labels = (self._host, adapter.name, port.name)
        facts = (port / "link_layer", adapter / "fw_ver", adapter / "hca_type", adapter / "device" / "numa_node")
        yield Sample(IB_INFO, (*labels, *(files.read_text(path) or "" for path in facts)), 1)
        state = files.read_text(port / "state")
        if state:
            yield Sample(IB_UP, labels, state.partition(":")[0] == _ACTIVE)
        if (rate := _rate(files.read_text(port / "rate") or "")) is not None:
            yield Sample(IB_RATE, labels, rate)
        yield from _counters(port, labels)


def _counters(port: Path, labels: tuple[str, ...]) -> Iterator[Sample]:
    for traffic, sources in TRAFFIC:
        for name, factor in sources:
            if (value := files.read_number(port / name)) is not None:
                yield Sample(traffic, labels, value * factor)
                break
    for kinds, names in (
        (IB_ERRORS, ERRORS),
        (IB_CONGESTION, tuple(f"hw_counters/{name}" for name in CONGESTION)),
    ):
        for name in names:
            if (value := files.read_number(port / name)) is not None:
                yield Sample(kinds, (*labels, name.rpartition("/")[2]), value)


def _rate(text: str) -> float | None:
    """Return the bytes a second of a line such as ``200 Gb/sec (4X HDR)``."""
    number, _, unit = text.partition(" ")
    try:
        return float(number) * _GIGABIT_IN_BYTES if unit.startswith("Gb/sec") else None
    except ValueError:
        return None


ENTRY = Entry(
    "ports of InfiniBand, RoCE and EFA adapters: traffic, errors, congestion",
    (
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
    ),
    lambda options: InfinibandCollector(options.sysfs, options.host, options.devices["infiniband"]),
)
