"""The performance monitor (GPM) of GPUs and of their MIG devices: means over the time since the question before."""

from __future__ import annotations

import time
from typing import Any

from laggard_exporter.nvml.child.codes import NOT_SUPPORTED

#: Two samples of GPM closer than this say nothing (nvml.h asks for 100 ms); the newest answer is given again.
SHORTEST_WINDOW = 0.25
#: An older sample is no start of a window that anybody would call current.
LONGEST_WINDOW = 600.0


class Activity:
    """The newest sample of each GPU, and what was last said of it; ``library`` is the module of nvidia-ml-py."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._samples: dict[Any, tuple[Any, float, tuple[float, dict[int, float]]]] = {}

    def metrics(
        self, gpu: int, handle: Any, numbers: Any, instance: int | None
    ) -> tuple[float, dict[int, float], bool]:
        """Return the length of a window, the metrics by number over it, and whether it is a new one.

        It is 0, without metrics, where a first window begins now. ``instance`` is that of a MIG device, None for the
        whole GPU.
        """
        library, key = self._library, (gpu, instance)
        before = self._samples.get(key)
        if before is None and not library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise library.NVMLError(NOT_SUPPORTED)
        now = time.monotonic()
        if before is not None and now - before[1] < SHORTEST_WINDOW:
            return (*before[2], False)
        sample = library.nvmlGpmSampleAlloc()
        try:
            if instance is None:
                library.nvmlGpmSampleGet(handle, sample)
            else:
                library.nvmlGpmMigSampleGet(handle, instance, sample)
            answer: tuple[float, dict[int, float]] = (0.0, {})
            if before is not None and now - before[1] < LONGEST_WINDOW:
                answer = (now - before[1], self._compare(before[0], sample, numbers))
        except Exception:
            library.nvmlGpmSampleFree(sample)
            raise
        self._samples[key] = (sample, now, answer)
        if before is not None:
            library.nvmlGpmSampleFree(before[0])
        return (*answer, True)

    def _compare(self, first: Any, second: Any, numbers: Any) -> dict[int, float]:
        request = self._library.c_nvmlGpmMetricsGet_t()
        request.version = self._library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(numbers)
        request.sample1, request.sample2 = first, second
        for index, number in enumerate(numbers):
            request.metrics[index].metricId = number
        self._library.nvmlGpmMetricsGet(request)
        metrics = [request.metrics[index] for index in range(len(numbers))]
        return {metric.metricId: metric.value for metric in metrics if metric.nvmlReturn == 0}
