"""Batch fetches: how long the training thread waits in ``next()`` of a DataLoader's iterator, and whose batch it is.

A fetch belongs to its loader: by that the partition tells training data from an evaluation's. An iterator does not know
its loader, but it has the loader's sampler, which no other loader has. By that an iterator gets a number. What a loader
needs to make an iterator, as to start its workers, is a part of the iterator's first fetch. To stop the workers is data
too: the end of a loader does it in its last fetch, an iterator that a loop leaves earlier when it is dropped.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from laggard._events import ENDING, EXHAUSTED, FIRST_BATCH, IDENTITY_SHIFT, ITERATOR, SWALLOWS_FETCH, Token
from laggard._hooks.base import Hook, interval
from laggard._hooks.loaders import ITERATORS
from laggard._hot_path import LOADER_ATTRIBUTE
from laggard._part import Host
from laggard.shared.phases import Phase


def loader_of(iterator: Any) -> int:
    """Return the number of an iterator's loader, 0 where it is not known."""
    return getattr(iterator, LOADER_ATTRIBUTE, 0)


class DataLoaderHook(Hook):
    """Wraps ``_BaseDataLoaderIter.__next__``, which every kind of loader and every way to iterate go through.

    And ``DataLoader.__iter__``, where the iterator is made.
    """

    name = "dataloader"
    signal = "data"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._numbers = itertools.count(1)
        #: Numbers of loaders, by their samplers.
        self._samplers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        #: The newest sampler that cannot be a key, as a list of batches, and its number.
        self._plain: tuple[Any, int] = None, 0

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for the modules of the loaders."""
        return {
            "torch.utils.data.dataloader": self._patch,
            "torchdata.stateful_dataloader.stateful_dataloader": self._patch_stateful,
        }

    def _patch(self, module: ModuleType) -> None:
        self.replace(module._BaseDataLoaderIter, "__next__", self._wrap)  # noqa: SLF001 - it has no public name
        self.replace(module.DataLoader, "__iter__", self._wrap_making)
        # Loaders of other libraries make iterators of torch's themselves.
        self.replace(module._MultiProcessingDataLoaderIter, "__init__", self._wrap_starting)  # noqa: SLF001 - see above
        self._patch_ending(module)

    def _patch_stateful(self, module: ModuleType) -> None:
        self.replace(module.StatefulDataLoader, "__iter__", self._wrap_making)
        self._patch_ending(module)

    def _patch_ending(self, module: ModuleType) -> None:
        self.replace(getattr(module, ITERATORS[module.__name__]), "_shutdown_workers", self._wrap_ending)

    def _number_of_loader(self, loader: Any) -> int:
        """Return a loader's number; 0, which says nothing, after a failure."""
        try:
            return self._number(getattr(loader, "_index_sampler", None))
        except Exception as error:
            self.host.part_failed(self, error)
            return 0

    def _adopt(self, iterator: Any) -> int:
        """Give a new iterator the number of its loader and return it; 0, which says nothing, after a failure."""
        number = 0
        try:
            number = self._number(getattr(iterator, "_index_sampler", None))
            setattr(iterator, LOADER_ATTRIBUTE, number)
            for observer in self.host.iterator_observers:
                observer(iterator)
        except Exception as error:
            self.host.part_failed(self, error)
        return number

    def _number(self, sampler: Any) -> int:
        try:
            known = self._samplers.get(sampler)
            if known is None:
                known = self._samplers[sampler] = next(self._numbers)
        except TypeError:
            if sampler is None or sampler is not self._plain[0]:
                self._plain = sampler, next(self._numbers)
            known = self._plain[1]
        return known

    def _wrap(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        timed = self.recorder.path.timed_fetch(fetch, Phase.DATA, FIRST_BATCH, EXHAUSTED, self._adopt)
        return functools.update_wrapper(timed, fetch)

    def _wrap_making(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return interval(self.recorder, make, self._begin_making)

    def _wrap_starting(self, start: Callable[..., None]) -> Callable[..., None]:
        def begin(_iterator: Any, loader: Any, *_: Any) -> Token | None:
            return self._begin_making(loader)

        return interval(self.recorder, start, begin)

    def _wrap_ending(self, end: Callable[[Any], None]) -> Callable[[Any], None]:
        # A process that ends may have lost the names of this module.
        recorder, swallows, code = self.recorder, SWALLOWS_FETCH, ENDING

        def begin(iterator: Any) -> Token | None:
            done = getattr(iterator, "_shutdown", True)
            return None if done or recorder.phase in swallows else recorder.begin(code)

        return interval(recorder, end, begin)

    def _begin_making(self, loader: Any) -> Token | None:
        recorder = self.recorder
        if recorder.phase in SWALLOWS_FETCH:
            return None
        return recorder.begin(ITERATOR | self._number_of_loader(loader) << IDENTITY_SHIFT)
