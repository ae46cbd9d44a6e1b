"""Traces of a job on GPUs, as torch's profiler writes them (Kineto's libkineto/src/output_json.cpp), from a simulation.

The device runs its streams in order, kernels begin when they were launched and their stream is free, and a collective
ends on all ranks together.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HOST, _ENGINE, _COMPUTE, _NCCL = 4711, 4712, 7, 20
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>(cutlass_80_tensorop_s1688gemm_128x128::Params)"


@dataclass
class Work:
    """What a rank does in a step; milliseconds."""

    data: float = 1.0
    copy: float = 0.5
    forward: float = 20.0
    backward: float = 40.0
    update: float = 4.0
    #: Behind the update, on the host alone.
    other: float = 0.5
    #: Between two launches on the host.
    launch: float = 0.02


@dataclass
class Job:
    """A job; ``ranks`` do their work in each step, then reduce gradients."""

    ranks: list[Work]
    steps: int = 12
    #: Kernels of forward and of backward, each.
    kernels: int = 10
    #: Milliseconds of the collective itself, and the share of backward behind which it begins.
    transfer: float = 2.0
    begins: float = 1.0
    marks: bool = True
    #: Whether the host waits for its device in each step: it reads the loss, and copies from memory that is not pinned.
    waits: bool = True
    size: int | None = None
    #: Stages of a pipeline, each of as many neighbours, told by the process groups of a mesh.
    stages: int = 1


@dataclass
class _Rank:
    """One rank's clocks, in microseconds, and what was recorded."""

    number: int
    work: Work
    now: float = 1000.0
    compute: float = 0.0
    nccl: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def mark(self, category: str, name: str, begin: float, *, thread: int = _HOST, **arguments: Any) -> None:
        self._add(category, name, (_HOST, thread), begin=begin, length=self.now - begin, args=arguments)

    def _add(self, category: str, name: str, place: tuple[int, int], *, begin: float, length: float, args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": place[0], "tid": place[1]}
        self.events.append({**event, "ts": round(begin, 3), "dur": round(length, 3), "args": args})

    def launch(self, call: str, thread: int) -> int:
        """Launch something; return its correlation."""
        self.correlation += 1
        begin = self.now
        self.now += 5
        self.mark("cuda_runtime", call, begin, thread=thread, cbid=211, correlation=self.correlation)
        flow = {"id": self.correlation, "pid": _HOST, "tid": thread, "ts": begin, "cat": "ac2g", "name": "ac2g"}
        self.events.append({"ph": "s", **flow})
        return self.correlation

    def run(  # noqa: PLR0917 - as the columns of an event
        self, category: str, name: str, stream: int, begin: float, length: float, correlation: int
    ) -> float:
        """Record what ran on the device; return its end."""
        args = {"device": 0, "context": 1, "stream": stream, "correlation": correlation, "External id": correlation}
        if category == "kernel":
            args |= {"registers per thread": 128, "shared memory": 49152, "grid": [64, 1, 1], "block": [256, 1, 1]}
        self._add(category, name, (0, stream), begin=begin, length=length, args=args)
        return begin + length

    def kernels(self, operator: str, count: int, length: float, thread: int, **arguments: Any) -> None:
        """Launch kernels that take so many microseconds together."""
        for _ in range(count):
            begin = self.now
            correlation = self.launch("cudaLaunchKernel", thread)
            self.compute = self.run("kernel", GEMM, _COMPUTE, max(self.compute, self.now), length / count, correlation)
            self.now += max(1.0, self.work.launch * 1e3 - 5)
            self.mark("cpu_op", operator, begin, thread=thread, **{"External id": correlation}, **arguments)


def simulate(job: Job) -> dict[int, list[dict[str, Any]]]:
    """Return the events of each rank."""
    ranks = [_Rank(number, work) for number, work in enumerate(job.ranks)]
    for step in range(job.steps):
        begins = [rank.now for rank in ranks]
        for rank in ranks:
            _forward(rank, job.kernels, waits=job.waits)
        starts: list[tuple[float, int]] = []
        for rank in ranks:
            # The part of backward behind which the collective is launched, then the rest beside it.
            early = round(job.kernels * job.begins)
            share = rank.work.backward * 1e3 / job.kernels
            begin = rank.now
            _backward(rank, early, early * share)
            correlation = rank.launch("cudaLaunchKernelExC", _ENGINE)
            starts.append((max(rank.now, rank.compute, rank.nccl), correlation))
            _backward(rank, job.kernels - early, (job.kernels - early) * share)
            rank.mark("user_annotation", "nccl:all_reduce", begin, thread=_ENGINE)
        end = max(start for start, _ in starts) + job.transfer * 1e3
        for rank, (start, correlation) in zip(ranks, starts, strict=True):
            rank.nccl = rank.run("kernel", ALL_REDUCE, _NCCL, start, end - start, correlation)
            rank.compute = max(rank.compute, rank.nccl)
            begin = rank.now
            rank.kernels("aten::_foreach_add_", 2, rank.work.update * 1e3, _HOST)
            rank.mark("user_annotation", "Optimizer.step#AdamW.step", begin)
            if job.waits:
                rank.now = max(rank.now, rank.compute)
            rank.now += rank.work.other * 1e3
            if job.marks:
                name = f"ProfilerStep#{step + 7}"
                rank.mark("user_annotation", name, begins[rank.number])
                # The device has a mark of its own, which is no step of the host.
                rank.run("gpu_user_annotation", name, _COMPUTE, begins[rank.number] + 1e4, 1e6, 0)
    return {rank.number: rank.events for rank in ranks}


def _forward(rank: _Rank, kernels: int, *, waits: bool) -> None:
    begin = rank.now
    rank.now += rank.work.data * 1e3
    rank.mark("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin)
    begin = rank.now
    correlation = rank.launch("cudaMemcpyAsync", _HOST)
    name = "Memcpy HtoD (Pageable -> Device)"
    rank.compute = rank.run(
        "gpu_memcpy", name, _COMPUTE, max(rank.compute, rank.now), rank.work.copy * 1e3, correlation
    )
    if waits:
        rank.now = rank.compute
    rank.mark("cpu_op", "aten::to", begin)
    rank.kernels("aten::linear", kernels, rank.work.forward * 1e3, _HOST, **{"Sequence number": 1, "Fwd thread id": 0})


def _backward(rank: _Rank, kernels: int, length: float) -> None:
    if kernels:
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        rank.kernels(name, kernels, length, _ENGINE, **{"Sequence number": 1, "Fwd thread id": 1})


def write(job: Job, folder: Path, suffix: str = "json") -> list[Path]:
    """Write a file for each rank, compressed where the suffix says so; return them in the order of the ranks."""
    paths: list[Path] = []
    for number, events in simulate(job).items():
        paths.append(folder / f"rank{number}.{suffix}")
        distributed: dict[str, Any] = {"rank": number, "world_size": job.size or len(job.ranks)}
        if job.stages > 1:
            width = len(job.ranks) // job.stages
            pipeline = [number % width + width * stage for stage in range(job.stages)]
            distributed["pg_config"] = [
                {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(len(job.ranks)))},
                {"pg_name": "1", "pg_desc": "mesh_pp", "ranks": pipeline},
            ]
        text = "".join(_text(events, distributed))
        data = text.encode()
        paths[-1].write_bytes(gzip.compress(data, 1) if suffix.endswith("gz") else data)
    return paths


def _text(events: list[dict[str, Any]], distributed: dict[str, Any]) -> Iterator[str]:
    facts = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000}],
        "distributedInfo": {"backend": "nccl", **distributed, "pg_count": 1, "nccl_version": "2.27.5"},
        "host_name": f"node-{distributed['rank'] // 8}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
    }
    yield json.dumps(facts, indent=2)[:-2]
    yield ',\n  "traceEvents": [\n'
    yield ",\n".join(json.dumps(event, indent=2) for event in events)
    yield '\n  ],\n  "traceName": "rank.json"\n}'
