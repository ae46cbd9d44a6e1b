"""Runs collectors in a few threads, so that one that hangs costs its own samples and nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import NamedTuple, Protocol

from laggard_exporter.logs import LogOnce
from laggard_exporter.samples import Grouped, PartialFailureError, Sample, grouped

#: One thread may wait for a driver while another reads files. Each further one costs memory and a scrape's time.
THREADS = 2
#: What waits so long, in seconds, for a thread gets one of its own: those that there are may hang.
PATIENCE = 0.1

_logger = logging.getLogger(__name__)


class Collector(Protocol):
    """One source of samples. It is never run twice at the same time."""

    @property
    def name(self) -> str:
        """Name in flags and in the ``collector`` label."""
        ...

    def collect(self) -> Iterable[Sample]:
        """Yield what the source says now.

        Raises :class:`UnsupportedError` where the node has no such source; the collector then has nothing to say.
        Raises :class:`~laggard_exporter.samples.PartialFailureError` at its end: the collector counts as failed, and
        what it yielded is kept. Raises anything else: the collector counts as failed.

        What a run that succeeds leaves out, and why, a collector may keep as texts in its attribute ``notes``.
        """
        ...


class UnsupportedError(Exception):
    """The node has not what the collector reads; the text says what is missing and why."""


class Outcome(NamedTuple):
    """How a run ended. ``problem`` is empty for a run that succeeded."""

    samples: Grouped
    problem: str = ""
    unsupported: str = ""
    """Why the node has not what the collector reads."""
    duration: float = 0.0
    notes: tuple[str, ...] = ()
    """What the collector leaves out, and why."""


class Crew:
    """The threads in which runners work, one after the other."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Runner] = deque()
        self._threads = self._idle = 0

    def run(self, runner: Runner) -> None:
        """Have a thread call :meth:`Runner.work`. Raises :class:`RuntimeError` where there is none and none can start.

        It may be called while the runner is locked.
        """
        with self._condition:
            if self._threads < THREADS and len(self._waiting) >= self._idle:
                self._start()
            self._waiting.append(runner)
            self._condition.notify()

    def hurry(self) -> None:
        """Start a further thread where something waits for one."""
        with self._condition:
            if self._waiting:
                self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=f"collectors {self._threads}", daemon=True).start()
        except RuntimeError:  # a full process table; the next scrape tries again
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _work(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                while not self._waiting:
                    self._condition.wait()
                self._idle -= 1
                runner = self._waiting.popleft()
            runner.work()


class Runner:
    """Runs one collector in a thread of ``crew`` when asked.

    Who asks while a run is under way gets the next one, together with all who ask until it starts: what a run brings
    is never older than the question, and however many ask, at most one run waits.
    """

    def __init__(self, collector: Collector, crew: Crew) -> None:
        self.name = collector.name
        self.last_success: float | None = None
        """Unix time of the newest run that succeeded."""
        self.newest: tuple[float, Outcome] | None = None
        """Monotonic time and outcome of the newest run that ended."""
        self._collector = collector
        self._crew = crew
        self._lock = threading.Lock()
        self._next: Future[Outcome] | None = None
        self._is_running = False
        self._log = LogOnce(_logger)

    def request(self) -> Future[Outcome]:
        """Return a run that has not started yet."""
        with self._lock:
            if self._next is not None:
                return self._next
            run: Future[Outcome] = Future()
            if not self._is_running:
                try:
                    self._crew.run(self)
                except RuntimeError as error:
                    run.set_result(self._failed(f"did not start: {error}", 0.0))
                    return run
            self._next = run
            return run

    def wait(self, run: Future[Outcome], seconds: float) -> Outcome:
        """Return the run's outcome, or a failure when it does not end in so many seconds."""
        end = time.monotonic() + seconds
        while (outcome := _outcome(run, min(PATIENCE, end - time.monotonic()))) is None and time.monotonic() < end:
            self._crew.hurry()
        return outcome or self._failed("did not answer within the time of the scrape", seconds)

    def work(self) -> None:
        """Do the run that was asked for."""
        with self._lock:
            run, self._next = self._next, None
            self._is_running = True
        assert run is not None  # noqa: S101 - the crew has a runner once for each
        outcome = self._run()
        self.newest = time.monotonic(), outcome
        with self._lock:
            self._is_running = False
            if self._next is not None:
                self._crew.run(self)
        run.set_result(outcome)

    def _run(self) -> Outcome:
        started = time.monotonic()
        unsupported = ""
        samples: list[Sample] = []
        kept: Grouped = {}
        try:
            try:
                samples.extend(self._collector.collect())
            except UnsupportedError as error:
                unsupported = str(error)
                self._log(logging.INFO, f"collector {self.name}: {unsupported}")
            except PartialFailureError as error:
                failure = self._failed(f"is incomplete: {error}", time.monotonic() - started)
                return failure._replace(samples=grouped(samples))
            kept = grouped(samples)
        # A collector reads what others may break: nothing that it raises may end its thread.
        except Exception as error:
            return self._failed(f"failed: {type(error).__name__}: {error}", time.monotonic() - started)
        self.last_success = time.time()
        notes = tuple(getattr(self._collector, "notes", ()))
        for note in notes:
            self._log(logging.INFO, f"collector {self.name}: {note}")
        return Outcome(kept, unsupported=unsupported, duration=time.monotonic() - started, notes=notes)

    def _failed(self, problem: str, duration: float) -> Outcome:
        text = f"collector {self.name} {problem}"
        self._log(logging.ERROR, text)
        return Outcome({}, text, duration=duration)


def _outcome(run: Future[Outcome], seconds: float) -> Outcome | None:
    """Return the outcome of a run that ends within ``seconds``, None of another."""
    try:
        return run.result(max(seconds, 0))
    except FutureTimeoutError:
        return None
