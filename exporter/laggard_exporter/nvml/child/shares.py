"""What processes use of a GPU, from the samples that the driver takes."""

from __future__ import annotations

import time
from typing import Any

from laggard_exporter.nvml.child.codes import NOT_FOUND, SUCCESS

#: The driver samples at least so often what processes use (nvml.h): until then its last samples are the newest.
SAMPLE_SECONDS = 1.0


class Shares:
    """The newest samples of each GPU; ``library`` is the module of nvidia-ml-py."""

    def __init__(self, library: Any) -> None:
        self._library = library
        # Time of the newest sample by the driver's clock, when it came by ours, and the shares by process.
        self._newest: dict[int, tuple[int, float, dict[int, int]]] = {}

    def by_process(self, gpu: int, handle: Any) -> dict[int, int]:
        """Return per cent by process, from the newest sample of each since the call before."""
        before: tuple[int | None, float, dict[int, int]] = self._newest.get(gpu, (None, 0.0, {}))
        newest, since, shares = before
        samples: Any
        try:
            samples = self._library.nvmlDeviceGetProcessUtilization(handle, newest or 0)
        except self._library.NVMLError as error:
            # So nvidia-ml-py and the driver say that there is none.
            if error.value not in {SUCCESS, NOT_FOUND}:
                raise
            samples = ()
        now = time.monotonic()
        found: dict[int, tuple[int, int]] = {}
        for sample in samples:
            found[sample.pid] = max(found.get(sample.pid, (0, 0)), (sample.timeStamp, sample.smUtil))
        if newest is None:  # of any age, and of processes that ended
            shares = {}
        elif found:
            since, shares = now, {pid: percent for pid, (_, percent) in found.items()}
        elif now - since >= SAMPLE_SECONDS:
            shares = {}
        newest = max((at for at, _ in found.values()), default=newest or 0)
        self._newest[gpu] = (newest, since, shares)
        return shares
