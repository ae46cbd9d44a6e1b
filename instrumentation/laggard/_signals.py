"""Which signals this process can measure now, so that rules abstain where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

from laggard._hooks import DeviceHook
from laggard._part import Part
from laggard.shared.metrics import SIGNALS
from laggard.shared.phases import Phase

#: Signals that are there when steps show time in the phase.
_PHASES = {
    "data": Phase.DATA,
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}


def available(parts: Iterable[Part], seen: Collection[Phase]) -> dict[str, bool]:
    """Return for each signal whether it can be trusted. ``seen`` are the phases in which steps spend time."""
    working: dict[str, bool] = {}
    clock = None
    for part in parts:
        if part.signal:
            working[part.signal] = working.get(part.signal, True) and part.available
        if isinstance(part, DeviceHook):
            clock = part.clock
    # The host's clock does not see when a device works, only when work is handed to it.
    blind = clock is None and _device_in_use()
    return {
        signal: working.get(signal, False)
        and (signal not in _PHASES or _PHASES[signal] in seen)
        and (signal == "data" or not blind)
        for signal in SIGNALS
    }


def _device_in_use() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
