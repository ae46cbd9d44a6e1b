"""Which signals this process can measure now, so that rules abstain where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

from laggard._hooks import DeviceHook, Hook
from laggard.conventions import SIGNALS, Phase

#: Signals that are there when steps show time in the phase.
_PHASES = {
    "data": Phase.DATA,
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}


def available(hooks: Iterable[Hook], seen: Collection[Phase]) -> dict[str, bool]:
    """Return for each signal whether it can be trusted. ``seen`` are the phases in which steps spend time."""
    working: dict[str, bool] = {}
    clock = None
    for hook in hooks:
        if hook.signal:
            working[hook.signal] = working.get(hook.signal, True) and hook.available
        if isinstance(hook, DeviceHook):
            clock = hook.clock
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
