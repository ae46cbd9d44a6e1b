"""The processes on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

from laggard_exporter.nvml.library import Nvml
from laggard_exporter.nvml.mig import MigDevice
from laggard_exporter.nvml.worker import Request

# By age of the driver: what the newer has in addition does not matter here.
_NEWEST = "nvmlDeviceGetComputeRunningProcesses_v3"
_OLDER = "nvmlDeviceGetComputeRunningProcesses_v2"

_NO_INSTANCE = 0xFFFFFFFF
_MEMORY_MAX = 1 << 50


class GpuProcess(NamedTuple):
    """A process on a GPU, by its number as the driver sees it; ``mig_uuid`` is empty without MIG."""

    pid: int
    mig_uuid: str
    memory: int | None


class Processes:
    """Reads the processes of GPUs through ``nvml``."""

    FUNCTIONS = (_NEWEST, _OLDER)

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._function = _NEWEST

    def request(self, gpu: int) -> Request:
        """Return the request for the processes on the GPU with this index."""
        return Request(self._function, gpu)

    def read(self, gpu: int, answer: list[dict[str, Any]] | None, parts: list[MigDevice]) -> list[GpuProcess]:
        """Return the processes, given the answer to :meth:`request`. Raises as ``nvml.queries``."""
        if answer is None and self._function == _NEWEST:
            answer = self._nvml.query(Request(_OLDER, gpu))
            if answer is not None:
                self._function = _OLDER
        mig = {(part.gpu_instance, part.compute_instance): part.uuid for part in parts}
        return [self._process(process, mig) for process in answer or ()]

    @staticmethod
    def _process(process: dict[str, Any], mig: dict[tuple[int, int], str]) -> GpuProcess:
        instance, compute = process.get("gpuInstanceId", _NO_INSTANCE), process.get("computeInstanceId", 0)
        memory = process["usedGpuMemory"]
        if memory is not None and memory > _MEMORY_MAX:
            memory = None
        return GpuProcess(process["pid"], mig.get((instance, compute), ""), memory)
