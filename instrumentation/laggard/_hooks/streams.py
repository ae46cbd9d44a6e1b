"""The exposed wait of FSDP on a device: its compute stream is told to wait for the stream of a collective.

FSDP, of both kinds, does so from Python, where gathered parameters are about to be used, before a gradient's buffer is
used again, and at the end of backward. Edges before and after that in the compute stream say how long the device stood
still for it. Waits of other streams are ahead of their use and hold nobody up, and what the script lets its stream wait
for is not communication.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any

from laggard._hooks.base import Hook
from laggard._hooks.waiting import begin_wait, end_wait

_FSDP = "torch.distributed.fsdp"
#: Modules of both kinds; older versions of torch have the second kind elsewhere.
_CALLERS = (_FSDP, "torch.distributed._composable.fsdp")


class StreamsHook(Hook):
    """Times the methods by which a stream is told to wait, when FSDP calls them for the compute stream."""

    name = "streams"
    signal = "communication"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for FSDP; other programs keep torch's own methods."""
        return {_FSDP: self._patch}

    def _patch(self, _fsdp: ModuleType) -> None:
        for name in ("wait_event", "wait_stream"):
            self.replace(sys.modules["torch"].cuda.Stream, name, self._wrap)

    def _wrap(self, wait: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        recorder = self.recorder
        exposure = self.host.exposure
        is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling

        @functools.wraps(wait)
        def timed_wait(stream: Any, awaited: Any) -> Any:
            if (
                is_compiling()
                or recorder.device is None
                or not _fsdp_calls(inspect.currentframe())
                or stream != (exposure.compute_stream or stream)
            ):
                return wait(stream, awaited)
            token = begin_wait(recorder)
            try:
                return wait(stream, awaited)
            finally:
                end_wait(recorder, exposure, token)

        return timed_wait


def _fsdp_calls(wait: FrameType | None) -> bool:
    # FSDP itself: `wait_stream` calls `wait_event`.
    caller = None if wait is None else wait.f_back
    return caller is not None and caller.f_globals.get("__name__", "").startswith(_CALLERS)
