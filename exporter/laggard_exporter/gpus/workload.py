"""What runs on a GPU: the rank, the pod or the Slurm job that each of its processes belongs to.

The rank comes from the state files, pod, container and job from the control groups of the process, which it cannot
choose, and some names from its environment. An environment is the user's: what does not look like a name is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from laggard.shared.statefile import Snapshot
from laggard_exporter.gpus.conventions import (
    GPU_WORKLOAD_INFO,
    GPU_WORKLOAD_MEMORY_USED,
    GPU_WORKLOAD_PROCESSES,
    GPU_WORKLOAD_SM_UTILIZATION,
)
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.samples import Sample

# Both of systemd's names, kubepods-burstable-pod12345678_1234_….slice, and of cgroupfs', kubepods/pod12345678-1234-….
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_CONTAINER = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
_SLURM_JOB = re.compile(r"slurm[^\n]*/job_(\d+)(?:/|$)", re.MULTILINE)

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NUMBER = re.compile(r"\d{1,20}")

#: An environment may be of any size; the variables of a launcher stand at its beginning or are not found.
_MOST_ENVIRONMENT = 1 << 17


def live_ranks(files: RankFiles) -> list[Snapshot]:
    """Return the state files of the live ranks, none where the folder cannot be read: who reads them says so."""
    try:
        return [rank.file for rank in files.newest() if rank.file.alive]
    except OSError:
        return []


class GpuProcess(NamedTuple):
    """A process on a GPU, by its number as the driver sees it; ``mig_uuid`` is empty without MIG."""

    pid: int
    mig_uuid: str
    memory: int | None
    utilization: float | None = None
    """Share of the newest sample period; None without a new sample."""


class GpuWorkload(NamedTuple):
    """The processes on one GPU, and the MIG devices that it is cut into."""

    uuid: str
    mig_uuids: list[str]
    processes: list[GpuProcess]


class Place(NamedTuple):
    """Where a process runs, empty where that is not known."""

    pod_uid: str = ""
    slurm_job_id: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    slurm_user: str = ""


class _Key(NamedTuple):
    """The labels that tell workloads apart."""

    uuid: str
    mig_uuid: str
    run: str
    rank: str
    pod_uid: str
    slurm_job_id: str


@dataclass
class _Workload:
    place: Place
    processes: int = 0
    memory: int | None = None
    utilization: float | None = None


class Workloads:
    """Makes samples of what runs on the GPUs.

    Args:
        ranks: returns the state files of the live ranks.
        procfs: shows the processes under the numbers that the driver gives.
    """

    def __init__(self, ranks: Callable[[], Iterable[Snapshot]], procfs: Path = Path("/proc")) -> None:
        self._ranks = ranks
        self._procfs = procfs
        self._places: dict[tuple[int, str], Place] = {}

    def __call__(self, gpus: list[GpuWorkload]) -> Iterator[Sample]:
        """Yield the workloads of the GPUs: one series each, whatever the number of their processes."""
        ranks = [rank for rank in self._ranks() if rank.facts.run]
        by_pid = {rank.holder_pid: rank for rank in ranks if rank.holder_pid}
        by_gpu: dict[str, list[Snapshot]] = {}
        for rank in ranks:
            by_gpu.setdefault(rank.facts.hardware_id, []).append(rank)
        before, self._places = self._places, {}
        for gpu in gpus:
            yield from _samples(self._of_gpu(gpu, by_pid, by_gpu, before))

    def _of_gpu(
        self,
        gpu: GpuWorkload,
        by_pid: dict[int, Snapshot],
        by_gpu: dict[str, list[Snapshot]],
        before: dict[tuple[int, str], Place],
    ) -> dict[_Key, _Workload]:
        found: dict[_Key, _Workload] = {}
        for process in gpu.processes:
            rank = by_pid.get(process.pid)
            workload = self._add(found, gpu.uuid, process.mig_uuid, rank, self._place(process.pid, before))
            _count(workload, process)
        seen = {(key.run, key.rank) for key in found}
        # A driver in another container may not show its processes; the ranks say themselves which GPU they use.
        for uuid in (gpu.uuid, *gpu.mig_uuids):
            for rank in by_gpu.get(uuid, ()):
                if (rank.facts.run, str(rank.facts.rank)) not in seen:
                    place = self._place(rank.holder_pid, before) if rank.holder_pid else Place()
                    self._add(found, gpu.uuid, "" if uuid == gpu.uuid else uuid, rank, place)
        return found

    @staticmethod
    def _add(found: dict[_Key, _Workload], uuid: str, mig_uuid: str, rank: Snapshot | None, place: Place) -> _Workload:
        run, number = (rank.facts.run, str(rank.facts.rank)) if rank else ("", "")
        key = _Key(uuid, mig_uuid, run, number, place.pod_uid, place.slurm_job_id)
        return found.setdefault(key, _Workload(place))

    def _place(self, pid: int, before: dict[tuple[int, str], Place]) -> Place:
        try:
            # The name of the command stands in parentheses and may hold some itself. Field 22 is the time of the start.
            stat = (self._procfs / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            key = (pid, stat[19].decode("ascii", "replace"))
            # Read once: the environment of a process that hangs may not be readable without hanging too.
            place = before.get(key) or self._places.get(key) or self._read_place(pid)
        except (OSError, IndexError):  # it ended meanwhile, or is not visible from here
            return Place()
        self._places[key] = place
        return place

    def _read_place(self, pid: int) -> Place:
        groups = (self._procfs / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
        pod, container, job = (_first(pattern, groups) for pattern in (_POD, _CONTAINER, _SLURM_JOB))
        variables = self._environment(pid)
        return Place(
            pod.replace("_", "-"),
            job or _checked(_NUMBER, variables.get("SLURM_JOB_ID")),
            _checked(_NAME, variables.get("POD_NAMESPACE")) if pod else "",
            _checked(_NAME, variables.get("POD_NAME")) if pod else "",
            container,
            _checked(_NAME, variables.get("SLURM_JOB_USER")),
        )

    def _environment(self, pid: int) -> dict[str, str]:
        try:
            with (self._procfs / str(pid) / "environ").open("rb") as file:
                data = file.read(_MOST_ENVIRONMENT)
        except OSError:  # another user's, and no right to read it
            return {}
        pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
        return {name.decode("ascii", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _checked(pattern: re.Pattern[str], text: str | None) -> str:
    return text if text and pattern.fullmatch(text) else ""


def _count(workload: _Workload, process: GpuProcess) -> None:
    workload.processes += 1
    if process.memory is not None:
        workload.memory = (workload.memory or 0) + process.memory
    if process.utilization is not None:
        workload.utilization = (workload.utilization or 0.0) + process.utilization


def _samples(found: dict[_Key, _Workload]) -> Iterator[Sample]:
    for key, workload in found.items():
        place = workload.place
        yield Sample(GPU_WORKLOAD_INFO, (*key, place.namespace, place.pod, place.container, place.slurm_user), 1)
        if workload.processes:
            yield Sample(GPU_WORKLOAD_PROCESSES, tuple(key), workload.processes)
        if workload.memory is not None:
            yield Sample(GPU_WORKLOAD_MEMORY_USED, tuple(key), workload.memory)
        if workload.utilization is not None:
            yield Sample(GPU_WORKLOAD_SM_UTILIZATION, tuple(key), workload.utilization)
