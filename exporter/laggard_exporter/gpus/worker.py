"""Runs a vendor's library in a child process: a driver call that never returns costs an answer, not the exporter.

A child that hangs is killed and replaced. One that cannot be killed, because the kernel holds it in a driver call,
is left behind: only a few of them, then no child is started until one of them is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from laggard_exporter.gpus.child_process import Answer, Batch, Child, DiedError, Event, HangError

#: So many children that cannot be killed are left behind before no further one is started.
MAX_STUCK = 2


class StuckError(Exception):
    """Too many children cannot be killed; no further one is started."""


class Worker:
    """Keeps one child at work, started at the first call. ``start`` makes a child."""

    def __init__(self, start: Callable[[], Child]) -> None:
        self._start = start
        self._child: Child | None = None
        self._stuck: list[Child] = []
        self._events: list[Event] = []

    def send(self, batch: Batch, seconds: float) -> int:
        """Ask the child, a new one where there is none, and return the number of the answers.

        Raises :class:`~laggard_exporter.gpus.child_process.DiedError`, after which the next call goes to a new child,
        and :class:`StuckError`.
        """
        if self._child is None:
            if self.stuck >= MAX_STUCK:
                raise StuckError
            self._child = self._start()
        with self._replacing():
            return self._child.send(batch, seconds)

    def receive(self, number: int, end: float) -> list[Answer]:
        """Return the child's answers.

        Raises as the child does. After :class:`~laggard_exporter.gpus.child_process.HangError` and
        :class:`~laggard_exporter.gpus.child_process.DiedError` the next call goes to a new child.
        """
        assert self._child is not None  # noqa: S101 - who received an error does not go on
        with self._replacing():
            answers = self._child.receive(number, end)
        self._collect_events(self._child)
        return answers

    def forget(self) -> None:
        """Throw away what was asked before and not waited for."""
        if self._child is not None:
            self._child.forget()

    @contextlib.contextmanager
    def _replacing(self) -> Generator[None, None, None]:
        try:
            yield
        except (HangError, DiedError):
            self.close()
            raise

    def close(self) -> None:
        """Give the child up; the next call goes to a new one."""
        child, self._child = self._child, None
        if child is not None:
            if not child.close():
                self._stuck.append(child)
            self._collect_events(child)

    @property
    def stuck(self) -> int:
        """Number of children that cannot be killed."""
        self._stuck = [child for child in self._stuck if child.process.poll() is None]
        return len(self._stuck)

    def pop_events(self) -> list[Event]:
        """Return the events since the last call of this method."""
        events, self._events = self._events, []
        return events

    def _collect_events(self, child: Child) -> None:
        self._events += child.events
        child.events.clear()
