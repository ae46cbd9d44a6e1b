"""Series that panels read and the simulation leaves out, made from what it does say so that they do not contradict it.

A GPU draws what its utilization needs, loaders are empty where steps wait for data, and who waits in a collective for
long has a flight recorder that says in which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lab.evaluation.model.blocks import Array
from lab.evaluation.model.target import Target
from laggard_exporter.web.address import PORT

_Labels = dict[str, str]
#: Seconds between two values; and share of their time for which workers work where no batch is ready.
_INTERVAL, _OCCUPIED = 15.0, 0.8
#: A rank shows no sign of progress after so many seconds.
_STALLED = 60.0
_TIERS = {"79": "critical", "94": "warning"}
_DISK = {"device": "nvme0n1", "direction": "read"}
_PORT = {"device": "mlx5_0", "port": "1"}
_ALL_REDUCE = {"training_collective_operation": "all_reduce"}
#: What each host says, and how much it grows in a second.
_OF_HOSTS: tuple[tuple[str, _Labels, float, float], ...] = (
    ("host_disk_operations_total", _DISK, 0, 100),
    ("host_disk_operation_seconds_total", _DISK, 0, 0.05),
    ("host_infiniband_transmit_bytes_total", _PORT, 0, 1e9),
    ("host_infiniband_receive_packets_total", _PORT, 0, 1e5),
    ("host_pressure_seconds_total", {"resource": "io", "tasks": "some"}, 0, 0.02),
)
#: And its node exporter, which the scrape tells from others.
_OF_EXPORTERS: tuple[tuple[str, _Labels, float, float], ...] = (
    ("laggard_exporter_build_info", {"version": "1"}, 1, 0),
    ("laggard_exporter_collector_success", {"collector": "nvml"}, 1, 0),
    ("laggard_exporter_collector_duration_seconds", {"collector": "nvml"}, 0.01, 0),
    ("laggard_exporter_state_files", {"result": "exported"}, 8, 0),
    ("laggard_exporter_nvml_errors_total", {"function": "nvmlDeviceGetFanSpeed_v2"}, 0, 0.01),
    ("laggard_exporter_nvml_values_rejected_total", {"metric": "gpu_utilization_ratio"}, 0, 0.01),
    ("laggard_exporter_amd_smi_errors_total", {"function": "amdsmi_get_power_cap_info"}, 0, 0.01),
    ("laggard_exporter_amd_smi_values_rejected_total", {"metric": "gpu_utilization_ratio"}, 0, 0.01),
)
#: And the hosts of a run whose name begins so: the network is what is wrong with it.
_BAD_LINKS = "bursts"
_OF_BAD_LINKS: tuple[tuple[str, _Labels, float, float], ...] = (
    ("host_infiniband_errors_total", {**_PORT, "error": "symbol_error"}, 0, 10),
    ("host_infiniband_congestion_packets_total", {**_PORT, "kind": "np_ecn_marked_roce_packets"}, 0, 5e4),
)


def left_out(targets: Iterable[Target]) -> list[Target]:
    """Return targets with what is left out of some. They are to be scraped together."""
    made: list[Target] = []
    runs, hosts = set[str](), set[str]()
    for target in targets:
        watched = _Watched(target)
        made += [each for build in (_ranks, _processes, _gpus, _xids) if (each := build(watched))]
        runs |= {each["training_run"] for each in watched.labels if "training_run" in each}
        hosts |= {each["host_name"] for each in watched.labels if "host_name" in each}
    rows = [(name, {"host_name": host, **labels}, value, growth)
            for host in sorted(hosts)
            for name, labels, value, growth in (*_OF_HOSTS, *(_OF_BAD_LINKS if host.startswith(_BAD_LINKS) else ()))
            ]  # fmt: skip
    rows += [
        (name, {"instance": f"{host}:{PORT}", **labels}, value, growth)
        for host in sorted(hosts)
        for name, labels, value, growth in _OF_EXPORTERS
    ]
    rows += [
        ("laggard_threshold_override", {"name": "gpu_hour_price", "training_run": run}, 2.5, 0) for run in sorted(runs)
    ]
    values, growth = (np.array([row[column] for row in rows], dtype=float) for column in (2, 3))
    lines = [_line(name, labels) for name, labels, _, _ in rows]
    return [*made, Target(lines, lambda at: values + growth * at, 7.0, marks=True)]


class _Watched:
    """A target whose newest values can be looked up, by what series are called."""

    def __init__(self, target: Target) -> None:
        self.target, self._read = target, target.read
        self.labels = [_labels(line) for line in target.series]
        self.now = np.full(len(self.labels), np.nan)
        target.read = self._remember

    def _remember(self, at: float) -> Array:
        values = self._read(at)
        self.now = values.copy()
        return values

    def find(self, name: str, owner: tuple[str, ...], **labels: str) -> dict[tuple[str, ...], int]:
        """Return the places of series of a name with some labels, by the values of those that tell them apart."""
        wanted = {"__name__": name, **labels}.items()
        return {
            tuple(each[label] for label in owner): place
            for place, each in enumerate(self.labels)
            if wanted <= each.items()
        }

    def made(self, owners: list[_Labels], series: list[tuple[str, _Labels]], read: Callable[[], list[Any]]) -> Target:
        """Return a target that is scraped right after this one: of each series a value for each owner."""
        lines = [_line(name, {**owner, **labels}) for name, labels in series for owner in owners]

        def values(_: float) -> Array:
            return np.concatenate([np.broadcast_to(column, len(owners)) for column in read()]).astype(float)

        return replace(self.target, series=lines, read=values, offset=self.target.offset + 0.01, marks=True)


_RANK = ("training_run", "training_rank")


def _ranks(watched: _Watched) -> Target | None:
    """What ranks export of their loaders, collectives and samples."""
    steps = watched.find("training_steps_total", _RANK)
    spent = watched.find("training_step_duration_seconds_sum", _RANK)
    if not spent:
        return None
    owners = list(spent)
    phase = "training_phase_duration_seconds_sum"
    waits = watched.find(phase, _RANK, training_phase="communication")
    computed = watched.find("training_dataloader_worker_cpu_time_seconds_total", _RANK)
    fetched = watched.find("training_dataloader_fetch_duration_seconds_sum", _RANK)
    workers = watched.find("training_dataloader_workers", _RANK)
    before = np.zeros((2, len(owners)))

    def column(places: Mapping[tuple[str, ...], int]) -> Array:
        return np.array([watched.now[places[owner]] if owner in places else np.nan for owner in owners])

    def read() -> list[Any]:
        nonlocal before
        now = np.array((column(computed), column(fetched)))
        (running, occupied), before = (now - before) / _INTERVAL, now
        every, done = column(workers), column(steps)
        there = np.where(np.isnan(done), np.nan, 1.0)
        occupied = np.clip(occupied, 0, every)
        running = np.clip(running, 0, occupied)
        ready = np.where(occupied > _OCCUPIED * every, 0, 2) * (0 * every + 1)
        own = [32 * done, 2e14 * done, column(waits), 4 * done, 5e8 * done, 0.001 * column(spent), 0 * there]
        return [*own, ready, running, occupied - running, every - occupied]

    series: list[tuple[str, _Labels]] = [
        ("training_samples_total", {}),
        ("training_flops_total", {}),
        ("training_collective_duration_seconds_sum", _ALL_REDUCE),
        ("training_collective_duration_seconds_count", _ALL_REDUCE),
        ("training_collective_io_bytes_total", _ALL_REDUCE),
        ("training_telemetry_self_time_seconds_total", {}),
        ("training_telemetry_level", {}),
        ("training_dataloader_queue_length", {}),
        ("training_process_workers", {"state": "running"}),
        ("training_process_workers", {"state": "disk"}),
        ("training_process_workers", {"state": "sleeping"}),
    ]
    return watched.made([dict(zip(_RANK, owner, strict=True)) for owner in owners], series, read)


def _processes(watched: _Watched) -> Target | None:
    """What flight recorders say of ranks that have waited in a collective for long."""
    sequence = watched.find("training_process_collective_sequence", _RANK)
    inside = watched.find("training_process_in_collective", _RANK)
    age = watched.find("training_process_last_step_age_seconds", _RANK)
    if not sequence or not inside or not age:
        return None
    columns = [[places[owner] for owner in sequence] for places in (sequence, inside, age)]

    def read() -> list[Any]:
        number, waits, since = (watched.now[column] for column in columns)
        return [np.where((waits == 1) & (since > _STALLED), number, np.nan)]

    labels = {**_ALL_REDUCE, "training_process_group": "world", "training_collective_call": "1"}
    owners: list[_Labels] = [dict(zip(_RANK, owner, strict=True)) for owner in sequence]
    return watched.made(owners, [("training_process_hang_pending", labels)], read)


def _gpus(watched: _Watched) -> Target | None:
    """What GPUs draw, hold and send."""
    found = watched.find("gpu_utilization_ratio", ("uuid",))
    if not found:
        return None
    places, holds = list(found.values()), 6e10 + 1e8 * np.arange(len(found))
    joules, sent = (np.zeros(len(found)) for _ in range(2))

    def read() -> list[Any]:
        nonlocal joules, sent
        busy = watched.now[places]
        watts = 120 + 560 * busy
        joules, sent = joules + 15 * np.nan_to_num(watts), sent + 15e10 * np.nan_to_num(busy)
        there = np.where(np.isnan(busy), np.nan, 1.0)
        return [watts, joules * there, holds * there, sent * there]

    names = ("gpu_power_watts", "gpu_energy_joules_total", "gpu_memory_used_bytes", "gpu_nvlink_transmit_bytes_total")
    return watched.made([{"uuid": uuid} for (uuid,) in found], [(name, {}) for name in names], read)


def _xids(watched: _Watched) -> Target | None:
    """How often GPUs have reported errors of which the simulation says when they last did."""
    found = watched.find("gpu_xid_last_timestamp_seconds", ("uuid", "xid"))
    if not found:
        return None
    owners = [{"uuid": uuid, "xid": xid, "tier": _TIERS.get(xid, "application")} for uuid, xid in found]
    places = list(found.values())
    return watched.made(owners, [("gpu_xid_errors_total", {})], lambda: [np.nan_to_num(watched.now[places]) > 0])


def _labels(line: str) -> _Labels:
    """Return the labels of a series as a target has it: its name, then names and values by turns."""
    name, *rest = line.split("\t")
    return {"__name__": name, **dict(zip(rest[::2], rest[1::2], strict=True))}


def _line(name: str, labels: Mapping[str, str]) -> str:
    return "\t".join((name, *(part for pair in labels.items() for part in pair)))
