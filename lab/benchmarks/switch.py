"""Takes laggard's hooks out of a running process and puts them back, so that both can be compared in it."""

from __future__ import annotations

from typing import Any

import torch.optim.optimizer as optimizers

from laggard._hooks import Hook


class Switch:
    """Turns all hooks of this process off and on."""

    def __init__(self, process: Any) -> None:
        self._hooks = [part for part in process._parts if isinstance(part, Hook)]
        self._on = True
        # torch calls these without asking laggard.
        self._tables = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        self._kept = [dict(table) for table in self._tables]

    def turn(self, on: bool) -> None:  # noqa: FBT001 - a switch
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
