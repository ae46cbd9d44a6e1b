"""Keeps a session with a vendor's library, where there is one, and reads every GPU at each scrape."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic

from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus import pci
from laggard_exporter.gpus.child_process import DiedError, HangError, OutOfTimeError, Request
from laggard_exporter.gpus.devices import D, Devices
from laggard_exporter.gpus.session import (
    AVAILABLE,
    ERROR,
    NO_ANSWER,
    RELEASED,
    DeviceLostError,
    Session,
    SessionLostError,
)
from laggard_exporter.gpus.worker import StuckError
from laggard_exporter.gpus.workload import GpuWorkload
from laggard_exporter.samples import PartialFailureError, Sample

#: Seconds after which a library that cannot be opened is tried again: a driver may be loaded at any time.
RETRY_SECONDS = 30
#: A scrape waits so long for a library in all, whatever hangs.
SCRAPE_SECONDS = 5.0
#: GPUs that are asked ahead of the one that is waited for: the other process has work, and a pipe has room for it.
AHEAD = 8
#: How often a scrape begins again with a new session or a new process.
ATTEMPTS = 4

_logger = logging.getLogger(__name__)

#: Makes samples of what runs on the GPUs.
Describe = Callable[[list[GpuWorkload]], Iterable[Sample]]


class GpuCollector(ABC, Generic[D]):
    """Yields the GPU metrics of one vendor: a backend says which library, and how a GPU is read.

    A node without the library is a normal one: the collector says so in its metrics and in the log, and looks again
    later.

    Args:
        session: the library.
        count: asks it how many GPUs there are.
        identify: returns the GPU with an index, as :class:`~laggard_exporter.gpus.devices.Devices` takes it.
        host: the node's name, on what is said of its driver.
        workloads: tells what the processes on the GPUs belong to.
        sysfs: shows the PCI bus.
        clock: counts seconds, for what is tried again later.
    """

    #: By which flags and metrics know the collector.
    name: ClassVar[str]
    families: ClassVar[names.SessionFamilies]
    #: Which GPUs the PCI bus should show, and what ``gpu_devices`` calls the two counts: the library's and the bus'.
    pci_kind: ClassVar[pci.Kind]
    sources: ClassVar[tuple[str, str]]
    #: How each state of the session is logged, where its name alone does not say what to do.
    status_log: ClassVar[Mapping[str, tuple[int, str]]] = {}

    def __init__(
        self,
        session: Session,
        count: Request,
        identify: Callable[[int, float | None], D | None],
        *,
        host: str,
        workloads: Describe | None = None,
        sysfs: Path = pci.SYSFS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._devices: Devices[D] = Devices(session, count, identify, clock)
        self._host = host
        self._workloads = workloads
        self._sysfs = sysfs
        self._clock = clock
        self.released = False
        """Whether the driver is left alone, so that it can be unloaded: from the next run on."""
        self._status: str | None = None
        self._logged_status: str | None = None
        self._retry_at = 0.0
        self._driver_facts: tuple[str, ...] | None = None

    @property
    @abstractmethod
    def rejected(self) -> Counter[str]:
        """Impossible values by metric."""

    @abstractmethod
    def read_driver(self) -> tuple[str, ...]:
        """Return the label values of ``gpu_driver_info`` but the host's. Raises as :meth:`Session.queries`."""

    @abstractmethod
    def ask(self, device: D, index: int) -> Any:
        """Ask a GPU, without waiting, and return the question. Raises as :meth:`Session.send`."""

    @abstractmethod
    def read(self, device: D, question: Any, workloads: list[GpuWorkload]) -> list[Sample]:
        """Return what a GPU answers, and add what runs on it. Raises as :meth:`Session.queries`."""

    def enumerated(self) -> None:
        """Follow a change of the GPUs that there are. Raises as :meth:`Session.queries`."""

    def take_events(self, last: Mapping[int, D]) -> None:
        """Take what was reported of GPUs since the last scrape, which had these indices."""

    def further(self, known: list[D]) -> Iterator[Sample]:  # noqa: ARG002 - for backends that say something
        """Yield what is said of known GPUs, those that are lost too."""
        return iter(())

    def about_session(self) -> Iterator[Sample]:
        """Yield what else is said of the session."""
        return iter(())

    def collect(self) -> Iterator[Sample]:
        """Yield the GPUs, the state of the session and what went wrong.

        Raises :class:`~laggard_exporter.samples.PartialFailureError` at the end when the library, or a GPU, did not
        answer.
        """
        self._session.begin(time.monotonic() + SCRAPE_SECONDS)
        yield from self._gpus()
        if (count := pci.count_gpus(self.pci_kind, self._sysfs)) is not None:
            yield Sample(names.GPU_DEVICES, (self.sources[1],), count)
        yield Sample(self.families.available, (), self._status == AVAILABLE)
        for status in self._session.library.statuses:
            yield Sample(self.families.status, (status, self._host), status == self._status)
        for function, count in self._session.errors.items():
            yield Sample(self.families.errors, (function,), count)
        for function, count in self._session.timeouts.items():
            yield Sample(self.families.timeouts, (function,), count)
        for metric, count in self.rejected.items():
            yield Sample(self.families.rejected, (metric,), count)
        yield Sample(self.families.stuck, (), self._session.worker.stuck)
        yield from self.about_session()
        if self._status == NO_ANSWER:
            raise PartialFailureError(f"{self._session.library.title} does not answer")
        if self._devices.quarantined and not self.released:
            raise PartialFailureError("a GPU does not answer in time")

    def close(self) -> None:
        """End the process that the library runs in."""
        self._session.close()

    def _gpus(self) -> list[Sample]:
        if self.released:
            if self._status != RELEASED:
                self._close()
                self._set_status(RELEASED)
                self._retry_at = 0.0
            return []
        # Several times: a session that the driver ended since the last scrape is replaced at once, and the other GPUs
        # are read after one that hangs.
        for _ in range(ATTEMPTS):
            samples = self._attempt()
            if samples is not None:
                return samples
        self._close()
        self._set_status(ERROR)
        return []

    def _attempt(self) -> list[Sample] | None:
        """Return the samples, none where there is no answer, and None where it is worth to begin again at once."""
        try:
            return self._read() if self._open() else []
        except SessionLostError:
            self._close()
        except (HangError, DiedError) as error:
            self._forget()
            if error.request.gpu is None:
                self._set_status(NO_ANSWER if isinstance(error, HangError) else ERROR)
                return []
            self._devices.quarantine(error.request.gpu)
        except (OutOfTimeError, StuckError):
            self._set_status(NO_ANSWER)
            # A call that takes longer goes on, and the next scrape waits for it.
            self._retry_at = 0.0
            return []
        return None

    def _open(self) -> bool:
        if self._status != AVAILABLE and self._clock() >= self._retry_at:
            self._forget()
            self._set_status(self._session.open())
        return self._status == AVAILABLE

    def _close(self) -> None:
        self._session.close()
        self._forget()

    def _forget(self) -> None:
        self._devices.forget_handles()
        self._driver_facts = None
        self._status = None

    def _set_status(self, status: str) -> None:
        if status != AVAILABLE:
            self._retry_at = self._clock() + RETRY_SECONDS
        if status != self._logged_status:
            plain = (
                logging.INFO if status == AVAILABLE else logging.WARNING,
                f"{self._session.library.title}: {status}",
            )
            level, message = self.status_log.get(status, plain)
            _logger.log(level, "%s", message)
        self._status = self._logged_status = status

    def _read(self) -> list[Sample]:
        last = dict(self._devices.last)
        counting = self._devices.ask()
        # The GPUs of the scrape before are asked at once: most likely they are those that there are.
        waiting = iter(self._devices.indexed)
        asked = self._ask_next(waiting, AHEAD)
        count, changed = self._devices.refresh(counting)
        known = self._devices.known
        if self._driver_facts is None or changed:
            self._driver_facts = (*self.read_driver(), self._host)
        samples = [Sample(names.GPU_DRIVER_INFO, self._driver_facts, 1)]
        # What is reported by now has the indices from before.
        self.take_events(last)
        if count is not None:
            samples.append(Sample(names.GPU_DEVICES, (self.sources[0],), count))
        if changed:
            self.enumerated()
            # What was asked of the GPUs before has no meaning for these.
            self._session.worker.forget()
            waiting = iter(self._devices.indexed)
            asked = self._ask_next(waiting, AHEAD)
        workloads: list[GpuWorkload] = []
        for device in known:
            values: list[Sample] = []
            if asked and device is asked[0][0]:
                values = self._read_device(*asked.pop(0), workloads)
                asked += self._ask_next(waiting, 1)
            samples.append(Sample(names.GPU_INFO, device.facts, 1))
            samples.append(Sample(names.GPU_UP, (device.uuid,), bool(values)))
            samples += values
        samples += self.further(known)
        if self._workloads is not None:
            samples += self._workloads(workloads)
        return samples

    def _ask_next(self, waiting: Iterator[tuple[D, int]], most: int) -> list[tuple[D, Any]]:
        """Ask the next GPUs, without waiting; return them with their questions."""
        return [(device, self.ask(device, index)) for device, index in islice(waiting, most)]

    def _read_device(self, device: D, question: Any, workloads: list[GpuWorkload]) -> list[Sample]:
        index = device.index
        try:
            values = self.read(device, question, workloads)
        except DeviceLostError:
            device.index = None
            return []
        if index is not None:
            self._devices.answered(index)
        return values
