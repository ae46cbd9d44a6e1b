"""Where loaders with worker processes are: torch's own, and torchdata's, whose iterator and worker are copies of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Class of the iterator, by the module that defines it.
ITERATORS = {
    "torch.utils.data.dataloader": "_MultiProcessingDataLoaderIter",
    "torchdata.stateful_dataloader.stateful_dataloader": "_StatefulMultiProcessingDataLoaderIter",
}
#: Modules in which an iterator looks up ``_worker_loop``, the function that its workers run.
WORKER_LOOPS = ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.stateful_dataloader")


class Noted:
    """Stands in for a method and takes note of the object on which it is looked up.

    The method itself is called without a frame of ours, so that a warning of torch names the line that it means, and a
    traceback has nothing of ours in it.
    """

    def __init__(self, note: Callable[[Any], None], method: Any) -> None:
        self.__wrapped__ = method
        self._note = note

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is not None:
            self._note(instance)
        return self.__wrapped__.__get__(instance, owner)
