"""Runs the collectors, each apart from the others, and keeps their health."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as PrometheusCollector

from laggard.version import __version__
from laggard_exporter.conventions import BUILD_INFO, COLLECTOR_DURATION, COLLECTOR_LAST_SUCCESS, COLLECTOR_SUCCESS
from laggard_exporter.logs import LogOnce
from laggard_exporter.samples import PartialFailureError, Sample, prometheus_families

#: A scrape waits this long for a collector that still works for an earlier scrape, in seconds.
BUSY_TIMEOUT = 2.0

_logger = logging.getLogger(__name__)


class Collector(Protocol):
    """One source of samples. It is never run twice at the same time."""

    @property
    def name(self) -> str:
        """Name in flags and in the ``collector`` label."""
        ...

    def collect(self) -> Iterable[Sample]:
        """Yield what the source says now.

        Raises anything: the collector then counts as failed. After a
        :class:`~laggard_exporter.samples.PartialFailureError` what it yielded is kept.
        """
        ...


class Collection(PrometheusCollector):
    """All collectors as one collector of prometheus_client: new samples at every scrape."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._runners = [_Runner(collector) for collector in collectors]

    def collect(self) -> Iterator[Metric]:
        """Yield every family of every collector and the health of each."""
        health = [Sample(BUILD_INFO, (__version__,), 1)]
        for runner in self._runners:
            families, own_health = runner.run()
            yield from families
            health += own_health
        yield from prometheus_families(health)


class _Runner:
    """Runs one collector: what it raises costs its own samples, never those of another."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._log = LogOnce(_logger)
        self._last_success: float | None = None

    def run(self) -> tuple[list[Metric], list[Sample]]:
        """Return the collector's families, none when it failed, and its health."""
        started = time.monotonic()
        families: list[Metric] | None = None
        complete = False
        # A collector that hangs in a driver must not take the later scrapes with it.
        if self._lock.acquire(timeout=BUSY_TIMEOUT):
            try:
                families, complete = self._collect()
            finally:
                self._lock.release()
        else:
            self._fail(f"is still busy with an earlier scrape after {BUSY_TIMEOUT:g} s")
        if complete:
            self._last_success = time.time()
        return families or [], self._health(success=complete, duration=time.monotonic() - started)

    def _collect(self) -> tuple[list[Metric] | None, bool]:
        samples: list[Sample] = []
        complete = True
        try:
            try:
                for sample in self._collector.collect():
                    samples.append(sample)  # noqa: PERF402 - what came before an error is kept
            except PartialFailureError as error:
                self._fail(f"is incomplete: {error}")
                complete = False
            return prometheus_families(samples), complete
        except Exception as error:
            self._fail(f"failed: {type(error).__name__}: {error}")
            return None, False

    def _fail(self, reason: str) -> None:
        self._log(logging.ERROR, f"collector {self._collector.name} {reason}")

    def _health(self, *, success: bool, duration: float) -> list[Sample]:
        labels = (self._collector.name,)
        samples = [Sample(COLLECTOR_SUCCESS, labels, success), Sample(COLLECTOR_DURATION, labels, duration)]
        if self._last_success is not None:
            samples.append(Sample(COLLECTOR_LAST_SUCCESS, labels, self._last_success))
        return samples
