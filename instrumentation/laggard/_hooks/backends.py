"""The kinds of devices that torch may compute on, beside the processor."""

from __future__ import annotations

import sys
from typing import Any

#: Names of torch's modules for them.
_BACKENDS = ("cuda", "xpu")


def backends_in_use() -> list[Any]:
    """Return torch's modules for the devices that this process uses already. Starts none."""
    torch = sys.modules.get("torch")
    modules = (getattr(torch, name, None) for name in _BACKENDS)
    return [module for module in modules if module is not None and module.is_initialized()]
