"""The MIG devices of a GPU: asked for at every scrape, because they come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus.child_process import Request
from laggard_exporter.gpus.readings import Call
from laggard_exporter.nvml import table
from laggard_exporter.nvml.library import Nvml
from laggard_exporter.nvml.reading import Reader
from laggard_exporter.samples import Sample

_MODE = "nvmlDeviceGetMigMode"
_COUNT = "nvmlDeviceGetMaxMigDeviceCount"
_HANDLE = "nvmlDeviceGetMigDeviceHandleByIndex"
_UUID = "nvmlDeviceGetUUID"
_GPU_INSTANCE = "nvmlDeviceGetGpuInstanceId"
_COMPUTE_INSTANCE = "nvmlDeviceGetComputeInstanceId"

#: The functions of nvidia-ml-py that MIG devices are read with.
FUNCTIONS = (_MODE, _COUNT, _HANDLE, _GPU_INSTANCE, _COMPUTE_INSTANCE)

_ENABLED = 1
#: What each device is asked.
_FACTS = (Call(_UUID), Call(_GPU_INSTANCE), Call(_COMPUTE_INSTANCE), Call("nvmlDeviceGetName"), table.MEMORY)


class MigDevice(NamedTuple):
    """One MIG device; ``uuid`` is its own."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str
    memory: dict[str, int] | None


def requests(gpu: int) -> list[Request]:
    """Return the requests that tell whether the GPU with this index has MIG devices."""
    return [Request(_MODE, gpu), Request(_COUNT, gpu)]


def devices(nvml: Nvml, gpu: int, mode: list[int] | None, most: int | None) -> list[MigDevice]:
    """Return the MIG devices of a GPU, given the answers to :func:`requests`. Raises as ``nvml.queries``."""
    if not mode or mode[0] != _ENABLED or not most:
        return []
    opened = nvml.queries([Request(_HANDLE, gpu, (index,)) for index in range(most)])
    keys = [(gpu, index) for index, is_open in enumerate(opened) if is_open is not None]
    requests = [call.on(key) for key in keys for call in _FACTS]
    # All of them together: a GPU may have seven, and each way to the other process costs.
    answers = iter(nvml.queries(requests) if requests else ())
    found: list[MigDevice] = []
    for _ in keys:
        uuid, gpu_instance, compute_instance, name, memory = (next(answers) for _ in _FACTS)
        if uuid is not None and gpu_instance is not None:
            # The name ends in the profile: NVIDIA H100 80GB HBM3 MIG 3g.40gb.
            profile = (name or "").rpartition(" MIG ")[2]
            found.append(MigDevice(uuid, gpu_instance, compute_instance or 0, profile, table.answered(memory)))
    return found


def samples(nvml: Nvml, reader: Reader, uuid: str, gpu: int, found: list[MigDevice]) -> Iterator[Sample]:
    """Yield what the MIG devices of a GPU say. Raises as ``nvml.queries``."""
    numbers = tuple(table.MIG_ACTIVITY.values())
    # Activity is that of the GPU instance, which several compute instances may share.
    instances = sorted({device.gpu_instance for device in found})
    answers = (
        nvml.queries([Request(table.GPM, gpu, (numbers, instance)) for instance in instances]) if instances else []
    )
    activity = {instance: answer[1] for instance, answer in zip(instances, answers, strict=True) if answer is not None}
    for device in found:
        instance = str(device.gpu_instance)
        labels = (uuid, instance, device.uuid)
        yield Sample(names.GPU_MIG_INFO, (uuid, instance, str(device.compute_instance), device.profile, device.uuid), 1)
        if device.memory is not None:
            yield Sample(names.GPU_MIG_MEMORY_CAPACITY, labels, device.memory["total"])
            yield Sample(names.GPU_MIG_MEMORY_USED, labels, device.memory["used"])
        for family, number in table.MIG_ACTIVITY.items():
            percent = activity.get(device.gpu_instance, {}).get(number)
            ratio = None if percent is None else reader.ratio(family, percent)
            if ratio is not None:
                yield Sample(family, labels, ratio)
