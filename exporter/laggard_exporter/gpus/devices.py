"""The GPUs of the node: which there are, which there were, and what never changes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from laggard_exporter.gpus.child_process import Batch, Request
from laggard_exporter.gpus.session import OPEN_SECONDS, DeviceLostError, Question, Session

#: Seconds after which a GPU that does not answer is asked again: opening one takes milliseconds.
RETRY_SECONDS = 30
#: One whose calls hang is asked again sooner, for it may have been the node that had no time.
HANG_RETRY_SECONDS = 10
#: Each time costs a process: it is asked ever less often, up to this.
LONGEST_RETRY_SECONDS = 600

_logger = logging.getLogger(__name__)


@dataclass
class Device:
    """One GPU. ``facts`` are the label values of ``gpu_info``; ``index`` is None while the GPU is lost."""

    uuid: str
    facts: tuple[str, ...]
    index: int | None
    pci: str = ""


D = TypeVar("D", bound=Device)


@dataclass
class _Quarantine:
    """A GPU whose calls hang is left alone until ``retry_at``, for ``seconds``."""

    seconds: float
    retry_at: float


class Devices(Generic[D]):
    """All GPUs seen since the start: one that is lost or left the enumeration stays, without an index.

    Args:
        session: the library.
        count: asks how many GPUs there are.
        identify: returns the GPU with an index, None where it has no answer; its calls may take this number of seconds.
        clock: counts seconds.
    """

    def __init__(
        self,
        session: Session,
        count: Request,
        identify: Callable[[int, float | None], D | None],
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._count_batch = Batch([count])
        self._identify = identify
        self._clock = clock
        self._known: dict[str, D] = {}
        #: The GPU that each index was last of: what happened to it may be reported after it was lost.
        self.last: dict[int, D] = {}
        self._owners: dict[str, str] = {}
        self._shared: set[str] = set()
        self._quarantine: dict[int, _Quarantine] = {}
        self._count: int | None = None
        self._retry_at = 0.0

    def forget_handles(self) -> None:
        """Take every handle for invalid, as after the end of a session."""
        self._count = None
        for device in self._known.values():
            device.index = None

    def quarantine(self, index: int) -> None:
        """Leave the GPU with this index alone for a while."""
        last = self._quarantine.get(index)
        seconds = min(last.seconds * 2, LONGEST_RETRY_SECONDS) if last else HANG_RETRY_SECONDS
        self._quarantine[index] = _Quarantine(seconds, self._clock() + seconds)

    def answered(self, index: int) -> None:
        """Note that the GPU with this index does not hang."""
        self._quarantine.pop(index, None)

    @property
    def quarantined(self) -> int:
        """Number of GPUs that are left alone because their calls hang."""
        return len(self._quarantine)

    @property
    def is_none_left(self) -> bool:
        """Whether there were GPUs and none answers, for another reason than that it hangs."""
        return bool(self._known) and not self._quarantine and not self.indices

    @property
    def indexed(self) -> list[tuple[D, int]]:
        """The GPUs that can be asked, with their indices."""
        return [(device, device.index) for device in self._known.values() if device.index is not None]

    @property
    def indices(self) -> list[int]:
        """The indices of the GPUs that can be asked."""
        return [index for _, index in self.indexed]

    @property
    def known(self) -> list[D]:
        """All GPUs, those that are lost too."""
        return list(self._known.values())

    def ask(self) -> Question:
        """Ask how many GPUs there are, without waiting. Raises as :meth:`refresh`."""
        return self._session.send(self._count_batch)

    def refresh(self, question: Question) -> tuple[int | None, bool]:
        """Return how many GPUs the library counts, None where it fails, and whether the known GPUs changed.

        Raises :class:`~laggard_exporter.gpus.session.SessionLostError`, and what a call that hangs raises.
        """
        (count,) = self._session.receive(question)
        enumerated = False
        if count is not None:
            missing = len(self.indices) < count and self._clock() >= self._retry_at
            due = any(self._clock() >= quarantine.retry_at for quarantine in self._quarantine.values())
            if count != self._count or missing or due:
                self._enumerate(count)
                enumerated = True
        return count, enumerated

    def _enumerate(self, count: int) -> None:
        self.forget_handles()
        self._retry_at = self._clock() + RETRY_SECONDS
        for index in range(count):
            quarantine = self._quarantine.get(index)
            if quarantine is not None and self._clock() < quarantine.retry_at:
                continue
            # A GPU that is known to hang is not waited for as one that is slow to begin with.
            seconds = OPEN_SECONDS if quarantine is None else None
            try:
                device = self._identify(index, seconds)
            except DeviceLostError:
                continue
            if device is not None:
                device = self._apart(device)
                self._known[device.uuid] = self.last[index] = device
        self._count = count

    def _apart(self, device: D) -> D:
        """Return a device under a UUID of its own: some boards have the same one twice."""
        owner = self._owners.setdefault(device.uuid, device.pci)
        if owner == device.pci:
            return device
        known = self._known[device.uuid]
        if device.uuid not in self._shared and known.index is None:
            # It was moved.
            self._owners[device.uuid] = device.pci
            return device
        uuid = f"{device.uuid}-{device.pci}"
        if device.uuid not in self._shared:
            self._shared.add(device.uuid)
            _logger.warning("GPUs %s and %s have the same UUID; the second one is shown as %s", owner, device.pci, uuid)
        return replace(device, uuid=uuid, facts=(uuid, *device.facts[1:]))
