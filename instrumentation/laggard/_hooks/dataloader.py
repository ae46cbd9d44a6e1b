"""Batch fetches: how long the training loop waits for ``next()`` of a DataLoader's iterator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from laggard._hooks.base import Hook
from laggard._recorder import EXHAUSTED, FIRST_BATCH
from laggard.conventions import Phase


class DataLoaderHook(Hook):
    """Wraps ``_BaseDataLoaderIter.__next__``, which every kind of loader and every way to iterate go through."""

    name = "dataloader"
    signal = "data"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the loader's module."""
        return {"torch.utils.data.dataloader": self._patch}

    def _patch(self, module: ModuleType) -> None:
        self.replace(module._BaseDataLoaderIter, "__next__", self._wrap)  # noqa: SLF001

    def _wrap(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        compiled = self.recorder.compiled
        if compiled is not None:
            return functools.update_wrapper(compiled.timed_fetch(fetch, Phase.DATA, FIRST_BATCH, EXHAUSTED), fetch)
        begin, end, add = self.recorder.begin, self.recorder.end, self.recorder.add
        data = int(Phase.DATA)

        @functools.wraps(fetch)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - it stands in for the method
            first = getattr(iterator, "_num_yielded", 1) == 0
            mark = FIRST_BATCH if first else 0
            token = begin(data)
            try:
                return fetch(iterator)
            except StopIteration:
                mark = EXHAUSTED
                raise
            finally:
                ended = end(token)
                if mark and ended:
                    add(mark, ended, ended)

        return __next__
