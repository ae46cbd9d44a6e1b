"""The processes on a GPU."""

from __future__ import annotations

from typing import Any

from laggard_exporter.gpus.child_process import Request
from laggard_exporter.gpus.conventions import GPU_WORKLOAD_SM_UTILIZATION
from laggard_exporter.gpus.workload import GpuProcess
from laggard_exporter.nvml.library import Nvml
from laggard_exporter.nvml.mig import MigDevice
from laggard_exporter.nvml.reading import Reader

# By age of the driver: what the newer has in addition does not matter here.
_NEWEST = "nvmlDeviceGetComputeRunningProcesses_v3"
_OLDER = "nvmlDeviceGetComputeRunningProcesses_v2"

_UTILIZATION = "nvmlDeviceGetProcessUtilization"

_NO_INSTANCE = 0xFFFFFFFF
_MEMORY_MAX = 1 << 50


class Processes:
    """Reads the processes of GPUs through ``nvml``; ``reader`` rejects what cannot be true."""

    FUNCTIONS = (_NEWEST, _OLDER, _UTILIZATION)

    def __init__(self, nvml: Nvml, reader: Reader) -> None:
        self._nvml = nvml
        self._reader = reader
        self._function = _NEWEST

    def requests(self, gpu: int) -> list[Request]:
        """Return the requests for the processes on the GPU with this index, and for what they use of it."""
        return [Request(self._function, gpu), Request(_UTILIZATION, gpu)]

    def read(
        self, gpu: int, answer: list[dict[str, Any]] | None, percents: dict[int, int] | None, parts: list[MigDevice]
    ) -> list[GpuProcess]:
        """Return the processes, given the answers to :meth:`requests`. Raises as ``nvml.queries``."""
        if answer is None and self._function == _NEWEST:
            answer = self._nvml.query(Request(_OLDER, gpu))
            if answer is not None:
                self._function = _OLDER
        mig = {(part.gpu_instance, part.compute_instance): part.uuid for part in parts}
        return [self._process(process, percents or {}, mig) for process in answer or ()]

    def _process(
        self, process: dict[str, Any], percents: dict[int, int], mig: dict[tuple[int, int], str]
    ) -> GpuProcess:
        instance, compute = process.get("gpuInstanceId", _NO_INSTANCE), process.get("computeInstanceId", 0)
        memory = process["usedGpuMemory"]
        if memory is not None and memory > _MEMORY_MAX:
            memory = None
        percent = percents.get(process["pid"])
        share = None if percent is None else self._reader.ratio(GPU_WORKLOAD_SM_UTILIZATION, percent)
        return GpuProcess(process["pid"], mig.get((instance, compute), ""), memory, share)
