"""Takes laggard's hooks out of a running process and puts them back, so that both can be compared in it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch.optim.optimizer as optimizers


class Switch:
    """Turns all hooks of this process off and on."""

    def __init__(self, process: Any) -> None:
        self._hooks = list(process._hooks)
        self._on = True
        # torch calls these without asking laggard.
        self._tables = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        self._kept = [dict(table) for table in self._tables]

    def turn(self, on: bool) -> None:  # noqa: FBT001  # a switch
        """Put the hooks in place, or take them out; nothing when they are there, or gone, already."""
        if on == self._on:
            return
        self._on = on
        for hook in self._hooks:
            hook.suspend(not on)
        for table, kept in zip(self._tables, self._kept, strict=True):
            table.clear()
            if on:
                table.update(kept)


def typical(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of some differences, and by how much a median of so many varies."""
    middle = statistics.median(values)
    spread = 1.48 * statistics.median(abs(value - middle) for value in values)
    return round(middle, 1), round(1.25 * spread / len(values) ** 0.5, 1)
