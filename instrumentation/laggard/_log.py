"""Numbers that only the script knows: loss, norm of the gradients, learning rate, samples, tokens, operations.

Nothing here waits for a device. A tensor on a device is copied asynchronously into pinned memory; the drain thread
reads the copy once the device says that it is there.
"""

from __future__ import annotations

import logging
import math
import sys
from numbers import Real
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any

from laggard._hooks.base import Hook
from laggard._part import Host
from laggard.shared import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from laggard._report import Report

_logger = logging.getLogger(__name__)

_GAUGES = {
    "loss": metrics.LOSS,
    "gradient_norm": metrics.GRADIENT_NORM,
    "learning_rate": metrics.LEARNING_RATE,
}
_COUNTERS = {"samples": metrics.SAMPLES, "tokens": metrics.TOKENS, "flops": metrics.FLOPS}
#: Values whose not being finite is itself a finding, with the attribute that says so.
WATCHED = {"loss": "loss", "gradient_norm": "gradient"}

#: Types that are taken as they are.
_PLAIN = (float, int)
#: Values kept between two drains; several seconds of steps below a millisecond.
_CAPACITY = 16384
#: Copies from one device that may be under way at once.
_SLOTS = 256


class _Copy:
    """A value on its way from a device."""

    __slots__ = ("_event", "_free", "_slot")

    def __init__(self, slot: Any, event: Any, free: list[Any]) -> None:
        self._slot = slot
        self._event = event
        self._free = free

    def ready(self) -> bool:
        return self._event.query()

    def read(self) -> float:
        value = float(self._slot)
        self._free.append((self._slot, self._event))
        return value


class _Pool:
    """Pinned memory and events for the copies from one device, used again and again."""

    def __init__(self, torch: ModuleType, device: Any) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        memory = torch.empty(_SLOTS, dtype=torch.float64, pin_memory=True)
        self._free = [(slot, self._module.Event()) for slot in memory.unbind()]

    def copy(self, tensor: Any) -> _Copy | None:
        """Begin a copy; ``None`` where none can be begun now."""
        if not self._free:
            return None
        slot, event = self._free.pop()
        # Made the slot's type on the device: in older versions of torch a copy that changes it goes through memory
        # that is not pinned, and waits for the device.
        slot.copy_(tensor.reshape(()).to(slot.dtype), non_blocking=True)
        event.record(self._module.current_stream(self._device))
        return _Copy(slot, event, self._free)


class Log(Hook):
    """Keeps what :func:`laggard.log` is given until the drain thread reports it."""

    name = "log"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._entries: list[tuple[str, Any]] = []
        self._dropped = 0
        self._is_compiling: Callable[[], bool] = _never
        self._pools: dict[Any, _Pool] = {}
        self._refused: set[tuple[str, str]] = set()
        self._inherited: list[Any] = []

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Patch nothing; wait for torch to ask it whether a graph is being compiled."""
        return {"torch": self._patch}

    def record(self, values: dict[str, Any]) -> None:
        """Keep values. On any thread, and on the hot path."""
        # Asked first: to a compiler this is a constant, and it looks no further.
        if self._is_compiling() or not self.installed:
            return
        entered = perf_counter_ns()
        entries = self._entries
        for name, value in values.items():
            if type(value) not in _PLAIN:
                try:
                    value = self._number(name, value)  # noqa: PLW2901 - the same value, read
                except Exception as error:
                    self._refuse(name, repr(error))
                    continue
                if value is None:
                    continue
            if len(entries) < _CAPACITY:
                entries.append((name, value))
            else:
                self._dropped += 1
        self.recorder.self_time_ns += perf_counter_ns() - entered

    def report(self, report: Report) -> None:
        """Report what has arrived: the newest value of a gauge, the sum of what a counter was given."""
        entries = self._entries[:]
        arrived = 0
        found: dict[tuple[metrics.Metric, str], float] = {}
        for name, value in entries:
            number = value
            if isinstance(value, _Copy):
                if not value.ready():
                    break
                number = value.read()
            arrived += 1
            try:
                self._sort(found, name, float(number))
            except OverflowError as error:
                self._refuse(name, str(error))
        del self._entries[:arrived]
        for (metric, attribute), value in found.items():
            report.measure(metric, value, *([attribute] if attribute else []))
        dropped, self._dropped = self._dropped, 0
        if dropped:
            report.telemetry(0, {"buffer_full": dropped})

    def forked(self) -> None:
        """Keep the parent's copies as they are: their destruction would touch its device."""
        self._inherited = [self._entries, self._pools]
        self._entries, self._pools = [], {}

    def _patch(self, torch: ModuleType) -> None:
        self._is_compiling = torch.compiler.is_compiling

    def _sort(self, found: dict[tuple[metrics.Metric, str], float], name: str, value: float) -> None:
        """Add a value to what is reported of its metric."""
        watched = WATCHED.get(name)
        if watched is not None:
            nonfinite = (metrics.NONFINITE, watched)
            found[nonfinite] = found.get(nonfinite, 0) + (not math.isfinite(value))
        if name in _GAUGES:
            if math.isfinite(value):
                found[_GAUGES[name], ""] = value
            elif watched is None:
                self._refuse(name, f"{value} is not finite")
        elif name in _COUNTERS:
            if 0 <= value < math.inf:
                counter = (_COUNTERS[name], "")
                found[counter] = found.get(counter, 0) + value
            else:
                self._refuse(name, f"{value} cannot be added to a counter")
        else:
            self._refuse(name, f"no such name; known are {', '.join((*_GAUGES, *_COUNTERS))}")

    def _number(self, name: str, value: Any) -> float | _Copy | None:
        if value is None:
            return None
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(torch, name, value)
        if value is True or value is False or not isinstance(value, Real):
            self._refuse(name, f"it must be a number, got {type(value).__name__}")
            return None
        return float(value)

    def _tensor(self, torch: ModuleType, name: str, tensor: Any) -> float | _Copy | None:
        tensor = tensor.detach()
        placements = getattr(tensor, "placements", None)
        if placements is not None:
            if not all(placement.is_replicate() for placement in placements):
                # To read it, all ranks would have to communicate.
                self._refuse(name, "it must be a number, got a part of a distributed tensor; give its full_tensor()")
                return None
            tensor = tensor.to_local()
        if tensor.numel() != 1:
            self._refuse(name, f"it must be a number, got a tensor of {tensor.numel()} elements")
            return None
        if tensor.device.type == "cpu":
            return float(tensor)
        capturing = getattr(torch.get_device_module(tensor.device), "is_current_stream_capturing", None)
        copy = None
        # Neither a copy nor pinned memory may be asked for in a capture.
        if capturing is None or not capturing():
            pool = self._pools.get(tensor.device)
            if pool is None:
                pool = self._pools[tensor.device] = _Pool(torch, tensor.device)
            copy = pool.copy(tensor)
        self._dropped += copy is None
        return copy

    def _refuse(self, name: str, reason: str) -> None:
        # Numbers in a reason differ; one line a name and kind of reason is enough.
        known = (name, reason.partition(" ")[2])
        if known not in self._refused and len(self._refused) < 100:  # noqa: PLR2004 - no memory for endless names
            self._refused.add(known)
            _logger.warning("laggard.log(%s=…) is ignored: %s", name, reason)


def _never() -> bool:
    return False
