"""Simulated runs, each with a fault, and all that the shipped rules record of them, for a Prometheus to serve."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from evaluation import engine
from evaluation.draw import Draw
from evaluation.model.exposition import incarnations
from evaluation.model.job import Job
from evaluation.model.target import EPOCH, Target
from evaluation.scenarios import SCENARIOS
from tests.dashboards.queries import PANELS, concrete
from tests.rules.engine import free_address
from tests.rules.pack import selectors

#: What is wrong with the runs, one each.
FAULTS = (
    "slow_backward",
    "hang_in_data",
    "leaking",
    "collecting",
    "hot",
    "much_training",
    "numbers_jump",
    "input_bound",
    "bursts",
    "restarted",
    "gpu_lost",
    "recompiling",
    "slower_than_before",
    "slow_epochs",
    "memory_short",
    "healthy",
)
RANKS = 8
#: Seconds between two points of a plot.
STEP = 15
#: Hosts whose links and disks are at fault.
_HOSTS = 4
SEED = 1


@dataclass(frozen=True)
class World:
    """A server with the runs, and when each of them was last seen."""

    client: httpx.Client
    ends: Mapping[str, float]

    @property
    def address(self) -> str:
        """Where the server is."""
        return str(self.client.base_url.copy_with(path="/")).rstrip("/")

    def times(self, run: str) -> list[float]:
        """Return the times of a range query over the last hour of a run."""
        end = self.ends[run]
        start = max(EPOCH, end - 3600)
        return [start + STEP * number for number in range(int((end - start) / STEP) + 1)]

    def answers(self, target: Mapping[str, Any], run: str) -> list[dict[str, Any]]:
        """Return the series of a panel's query, as Grafana would ask at the end of a run's last hour.

        Raises:
            AssertionError: Prometheus refuses the query.
        """
        start, *_, end = self.times(run)
        query = concrete(target["expr"], training_run=run, __range=f"{end - start:.0f}s")
        if target.get("instant"):
            answer = self.client.get("/query", params={"query": query, "time": end})
        else:
            answer = self.client.get("/query_range", params={"query": query, "start": start, "end": end, "step": STEP})
        found = answer.json()
        assert found["status"] == "success", f"{query}: {found['error']}"
        return found["data"]["result"]


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """Play the runs, and serve what was recorded."""
    jobs = [SCENARIOS[name].make(Draw(SEED, name, RANKS)).job for name in FAULTS]
    _play(jobs, folder / "blocks")
    with serve(folder) as client:
        yield World(client, {job.run: float(round(EPOCH + job.horizon)) for job in jobs})


@contextlib.contextmanager
def serve(folder: Path, timeout: float = 30) -> Iterator[httpx.Client]:
    """Serve the blocks in a folder, and delete them afterwards; an answer may take so many seconds."""
    (folder / "empty.yml").touch()
    address = free_address()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'empty.yml'}",
            f"--storage.tsdb.path={folder / 'blocks'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
            "--log.level=error",
        ]
    )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", timeout=timeout) as client:
            _wait(client)
            yield client
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder / "blocks")


def _wait(client: httpx.Client) -> None:
    for _ in range(150):
        with contextlib.suppress(httpx.TransportError):
            if client.get("/status/buildinfo").is_success:
                return
        time.sleep(0.2)
    raise TimeoutError("Prometheus does not answer")


def _play(jobs: list[Job], blocks: Path) -> None:
    files = engine.rule_files()
    names = engine.read_by_rules(files) | read_by_panels()
    targets = [
        (target, min(target.end, job.horizon))
        for job in jobs
        for each in incarnations(job)
        for target in each.targets(names)
    ]
    longest = max(job.horizon for job in jobs)
    targets.append((others([target for target, _ in targets]), longest))
    result = engine.evaluate(targets, SEED, files=files, horizons={}, blocks=blocks)
    assert not result.failed


def read_by_panels() -> frozenset[str]:
    """Return the names of all series that panels read."""
    queries = (concrete(target["expr"]) for panel in PANELS for target in panel.targets)
    return frozenset(selector.name for query in queries for selector in selectors(query) if selector.name)


#: What the simulation leaves out: of each rank, GPU and host a value, and how much it grows in a second.
_OF_RANKS: dict[str, tuple[dict[str, str], float, float]] = {
    "training_collective_duration_seconds_sum": ({"training_collective_operation": "all_reduce"}, 0, 0.05),
    "training_collective_duration_seconds_count": ({"training_collective_operation": "all_reduce"}, 0, 2),
    "training_collective_io_bytes_total": ({"training_collective_operation": "all_reduce"}, 0, 1e9),
    "training_samples_total": ({}, 0, 64),
    "training_flops_total": ({}, 0, 4e14),
    "training_telemetry_self_time_seconds_total": ({}, 0, 0.001),
    "training_telemetry_level": ({}, 0, 0),
    "training_signal_available": ({"training_signal": "communication"}, 0, 0),
    "training_process_workers": ({"state": "running"}, 4, 0),
    "training_process_hang_pending": (
        {"training_process_group": "world", "training_collective_operation": "all_reduce"},
        41,
        0,
    ),
    "training_dataloader_queue_length": ({}, 2, 0),
}
_OF_GPUS: dict[str, tuple[dict[str, str], float, float]] = {
    "gpu_power_watts": ({}, 600, 0),
    "gpu_energy_joules_total": ({}, 0, 600),
    "gpu_memory_used_bytes": ({}, 6e10, 0),
    "gpu_nvlink_transmit_bytes_total": ({}, 0, 1e10),
    "gpu_xid_errors_total": ({"xid": "94", "tier": "critical"}, 0, 0.001),
}
_OF_HOSTS: dict[str, tuple[dict[str, str], float, float]] = {
    "host_disk_operations_total": ({"device": "nvme0n1", "direction": "read"}, 0, 100),
    "host_disk_operation_seconds_total": ({"device": "nvme0n1", "direction": "read"}, 0, 0.2),
    "host_infiniband_transmit_bytes_total": ({"device": "mlx5_0", "port": "1"}, 0, 1e9),
    "host_infiniband_receive_packets_total": ({"device": "mlx5_0", "port": "1"}, 0, 1e5),
    "host_infiniband_errors_total": ({"device": "mlx5_0", "port": "1", "error": "symbol_error"}, 0, 10),
    "host_infiniband_congestion_packets_total": (
        {"device": "mlx5_0", "port": "1", "kind": "np_ecn_marked_roce_packets"},
        0,
        5e4,
    ),
    "host_pressure_seconds_total": ({"resource": "io", "tasks": "some"}, 0, 0.4),
    "laggard_exporter_collector_duration_seconds": ({"collector": "nvml"}, 0.01, 0),
    "laggard_exporter_state_files": ({"result": "exported"}, 8, 0),
    "laggard_exporter_nvml_errors_total": ({"function": "nvmlDeviceGetFanSpeed_v2"}, 0, 0.01),
    "laggard_exporter_nvml_values_rejected_total": ({"metric": "gpu_utilization_ratio"}, 0, 0.01),
}


def others(targets: list[Target]) -> Target:
    """Return a target with what the simulation leaves out, and with a price."""
    known = [_labels(series) for target in targets for series in target.series]
    ranks = {
        (each["training_run"], each["training_rank"])
        for each in known
        if each["__name__"] == "training_step_duration_seconds_count"
    }
    gpus = {each["uuid"] for each in known if each["__name__"] == "gpu_up"}
    hosts = {each["host_name"] for each in known if each["__name__"] == "training_rank_start_timestamp_seconds"}
    price = {"__name__": "laggard_threshold_override", "name": "gpu_hour_price"}
    rows: list[tuple[dict[str, str], float, float]] = [
        ({**price, "training_run": run}, 2.5, 0) for run in {run for run, _ in ranks}
    ]
    owners = (
        (_OF_RANKS, [{"training_run": run, "training_rank": rank} for run, rank in sorted(ranks)]),
        (_OF_GPUS, [{"uuid": uuid} for uuid in sorted(gpus)]),
        (_OF_HOSTS, [{"host_name": host} for host in sorted(hosts)[:_HOSTS]]),
    )
    for table, every in owners:
        for name, (labels, value, growth) in table.items():
            rows += [({"__name__": name, **owner, **labels}, value, growth) for owner in every]
    values = np.array([value for _, value, _ in rows])
    growth = np.array([growth for _, _, growth in rows])
    return Target([_line(labels) for labels, _, _ in rows], lambda at: values + growth * at, 7.0, marks=True)


def _labels(line: str) -> dict[str, str]:
    """Return the labels of a series as a target has it: its name, then names and values by turns."""
    name, *rest = line.split("\t")
    return {"__name__": name, **dict(zip(rest[::2], rest[1::2], strict=True))}


def _line(labels: Mapping[str, str]) -> str:
    rest = (part for name, value in labels.items() if name != "__name__" for part in (name, value))
    return "\t".join((labels["__name__"], *rest))
