"""The host's collectors on made-up trees, with exact values."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from laggard_exporter.filters import Filter
from laggard_exporter.host.disk import DiskCollector
from laggard_exporter.host.facts import HostCollector
from laggard_exporter.host.infiniband import InfinibandCollector
from laggard_exporter.host.pressure import PressureCollector
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Sample
from tests.exporter.support import as_dict, series_name
from tests.exporter.trees import HOST_PROCFS, INFINIBAND_SYSFS, write_tree


def read(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the samples without the name of the host, which every one carries."""
    found = as_dict(samples)
    assert all('host_name="node-7"' in series for series in found)
    return {_short(series): value for series, value in found.items()}


def _short(series: str) -> str:
    return (
        series.removeprefix("host_")
        .replace(',host_name="node-7"', "")
        .replace('{host_name="node-7"}', "")
        .replace('host_name="node-7",', "")
    )


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """Return a made-up procfs."""
    return write_tree(tmp_path / "proc", HOST_PROCFS)


def test_pressure(procfs: Path) -> None:
    """Pressure is the kernel's totals in seconds; what the kernel does not define is absent."""
    assert read(PressureCollector(procfs, "node-7").collect()) == {
        'pressure_seconds_total{resource="cpu",tasks="some"}': 1.5,
        'pressure_seconds_total{resource="io",tasks="some"}': 2.5,
        'pressure_seconds_total{resource="io",tasks="full"}': 2,
        'pressure_seconds_total{resource="memory",tasks="some"}': 0,
        'pressure_seconds_total{resource="memory",tasks="full"}': 0,
        'pressure_seconds_total{resource="irq",tasks="full"}': 12e-6,
    }


def test_a_kernel_without_pressure(tmp_path: Path) -> None:
    """A kernel that does not count pressure is said to be one."""
    with pytest.raises(UnsupportedError, match="booted with psi=1"):
        list(PressureCollector(tmp_path, "node-7").collect())


@pytest.mark.parametrize("text", ["some\n", "some avg10=0.00 total=x\n", "some nonsense\n", "\n"])
def test_pressure_that_is_none(tmp_path: Path, text: str) -> None:
    """What is no pressure fails the collector: a made-up value would be worse."""
    with pytest.raises(ValueError, match=r"pressure/io: a line must be about pressure, got "):
        list(PressureCollector(write_tree(tmp_path, {"pressure/io": text}), "node-7").collect())


def test_disks(procfs: Path) -> None:
    """A disk's counters are in bytes and seconds; partitions and loops are left out unless asked for."""
    disks = DiskCollector(procfs, "node-7", Filter(exclude=r"(loop|nvme\d+n\d+p)\d+|sda"))
    assert read(disks.collect()) == {
        'disk_operations_total{device="nvme0n1",direction="read"}': 100,
        'disk_operations_total{device="nvme0n1",direction="write"}': 200,
        'disk_bytes_total{device="nvme0n1",direction="read"}': 2000 * 512,
        'disk_bytes_total{device="nvme0n1",direction="write"}': 4000 * 512,
        'disk_operation_seconds_total{device="nvme0n1",direction="read"}': 3,
        'disk_operation_seconds_total{device="nvme0n1",direction="write"}': 9,
        'disk_io_seconds_total{device="nvme0n1"}': 7,
    }
    everything = read(DiskCollector(procfs, "node-7", Filter()).collect())
    assert {series.partition('device="')[2].partition('"')[0] for series in everything} == {
        "nvme0n1",
        "nvme0n1p1",
        "sda",
        "loop0",
    }


@pytest.mark.parametrize("line", ["", "nonsense", " 8 0 sda 1 2", " 8 0 sda a b c d e f g h i j k"])
def test_a_disk_that_is_none(tmp_path: Path, line: str) -> None:
    """A line that is no disk's fails the collector, and names it."""
    disks = DiskCollector(write_tree(tmp_path, {"diskstats": f"{line}\n"}), "node-7", Filter())
    with pytest.raises(ValueError, match=r"diskstats: a line must be about a disk, got '"):
        list(disks.collect())


def test_host(procfs: Path, tmp_path: Path) -> None:
    """Processor time by mode without guests' time counted twice, memory in bytes, and what shared memory has left."""
    ticks = os.sysconf("SC_CLK_TCK")
    status = os.statvfs(tmp_path)
    samples = read(HostCollector(procfs, "node-7", shared_memory=tmp_path).collect())
    assert samples.pop("shared_memory_capacity_bytes") == status.f_blocks * status.f_frsize
    assert 0 < samples.pop("shared_memory_free_bytes") <= status.f_blocks * status.f_frsize
    assert samples == {
        "logical_cpus": 2,
        'cpu_seconds_total{mode="user"}': 1000 / ticks,
        'cpu_seconds_total{mode="nice"}': 20 / ticks,
        'cpu_seconds_total{mode="system"}': 300 / ticks,
        'cpu_seconds_total{mode="idle"}': 40000 / ticks,
        'cpu_seconds_total{mode="iowait"}': 50 / ticks,
        'cpu_seconds_total{mode="irq"}': 6 / ticks,
        'cpu_seconds_total{mode="softirq"}': 70 / ticks,
        'cpu_seconds_total{mode="steal"}': 8 / ticks,
        "memory_capacity_bytes": 1000 * 1024,
        "memory_available_bytes": 600 * 1024,
        "swap_capacity_bytes": 50 * 1024,
        "swap_free_bytes": 40 * 1024,
    }


def test_without_shared_memory(procfs: Path, tmp_path: Path) -> None:
    """Without /dev/shm its size is absent and the rest is there."""
    samples = read(HostCollector(procfs, "node-7", shared_memory=tmp_path / "missing").collect())
    assert len(samples) == 13
    assert not any(series.startswith("shared_memory") for series in samples)


@pytest.mark.parametrize(("missing", "left"), [("stat", 6), ("meminfo", 11)])
def test_a_procfs_without_a_part(procfs: Path, tmp_path: Path, missing: str, left: int) -> None:
    """What procfs does not have is absent, and the rest is there."""
    (procfs / missing).unlink()
    assert len(read(HostCollector(procfs, "node-7", shared_memory=tmp_path).collect())) == left


def port(name: str, device: str, **labels: str) -> str:
    """Return the series of a port."""
    return series_name(f"infiniband_{name}", {"device": device, "port": "1", **labels}.items())


def test_infiniband(tmp_path: Path) -> None:
    """Ports of InfiniBand and EFA adapters, with counters in bytes; what a driver does not count is absent."""
    sysfs = write_tree(tmp_path, INFINIBAND_SYSFS)
    assert read(InfinibandCollector(sysfs, "node-7", Filter()).collect()) == {
        port("info", "mlx5_0", link_layer="InfiniBand", firmware="28.39.1002", adapter="MT4129", numa_node="1"): 1,
        port("link_up", "mlx5_0"): 1,
        port("rate_bytes_per_second", "mlx5_0"): 50e9,
        port("receive_bytes_total", "mlx5_0"): 4000,
        port("transmit_bytes_total", "mlx5_0"): 8000,
        port("receive_packets_total", "mlx5_0"): 30,
        port("transmit_packets_total", "mlx5_0"): 40,
        port("transmit_wait_total", "mlx5_0"): 5,
        port("errors_total", "mlx5_0", error="symbol_error"): 0,
        port("errors_total", "mlx5_0", error="link_downed"): 2,
        port("errors_total", "mlx5_0", error="out_of_sequence"): 3,
        port("congestion_packets_total", "mlx5_0", kind="np_cnp_sent"): 11,
        port("info", "efa_0", link_layer="Unspecified", firmware="0.0.0.0", adapter="", numa_node=""): 1,
        port("link_up", "efa_0"): 0,
        port("receive_bytes_total", "efa_0"): 77,
        port("errors_total", "efa_0", error="retrans_pkts"): 4,
    }


def test_chosen_adapters(tmp_path: Path) -> None:
    """Only adapters that the filter admits are looked at."""
    sysfs = write_tree(tmp_path, INFINIBAND_SYSFS)
    samples = read(InfinibandCollector(sysfs, "node-7", Filter(include="efa.*")).collect())
    assert len(samples) == 4
    assert all('device="efa_0"' in series for series in samples)


def test_no_adapter(tmp_path: Path) -> None:
    """A node without adapters is said to be one."""
    with pytest.raises(UnsupportedError, match="no InfiniBand, RoCE or EFA adapter"):
        list(InfinibandCollector(tmp_path, "node-7", Filter()).collect())
