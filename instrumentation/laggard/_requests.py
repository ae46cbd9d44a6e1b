"""Requests from outside: the drain thread looks once a second whether a control file has appeared or changed."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from laggard._part import Host, Part
from laggard.shared import control, environment
from laggard.shared.control import Reply, Request

if TYPE_CHECKING:
    from laggard._profile import Profiler
    from laggard._report import Report
    from laggard._trace import Answer, TraceDump

_logger = logging.getLogger(__name__)

# A file is dated by the kernel's coarse clock, a tick late at most: 10 ms where the kernel counts 100 a second.
_TICK_NS = 10_000_000


class ControlFile(Part):
    """Reads a rank's control file and answers in its reply file."""

    name = "control"

    def __init__(self, host: Host, trace: TraceDump, profiler: Profiler) -> None:
        super().__init__(host)
        self._trace = trace
        self._profiler = profiler
        self._replies: deque[Reply] = deque()
        #: Whether the rank has a state file. Without one its folder is not asked again: it may not answer.
        self._looks = False
        self._seen: tuple[int, int, int] | None = None
        self._handled: deque[str] = deque(maxlen=64)
        #: Of the newest profile, whose request may be taken back.
        self._profile: Answer | None = None
        #: What was asked of an earlier process of the same rank is not for this one.
        self._not_before = time.time_ns() - _TICK_NS

    def state_file_opened(self, words: memoryview[int]) -> None:  # noqa: ARG002 - as the base has it
        """Look for requests from now on."""
        self._looks = True

    def report(self, report: Report) -> None:
        """Look for a request, and write replies, also those to earlier ones."""
        if not self._looks:
            return
        stem = control.stem(report.identity.run, report.identity.rank)
        directory = environment.state_directory()
        if not self._look(directory / f"{stem}{control.REQUEST_SUFFIX}"):
            # Nobody waits for a reply any more, nor would remove it.
            self._replies.clear()
        while self._replies:
            reply = self._replies.popleft()
            try:
                control.write(directory / f"{stem}{control.REPLY_SUFFIX}", reply)
            except OSError as error:
                _logger.warning("the reply to request %s cannot be written: %s", reply.id, error)

    def forked(self) -> None:
        """Forget the parent's requests."""
        self._replies.clear()
        self._profile = None
        self._not_before = time.time_ns() - _TICK_NS

    def _look(self, path: Path) -> bool:
        """Take the request that is there, if it is new; return whether there is one."""
        try:
            status = os.lstat(path)
        except OSError:
            if self._profile is not None:
                self._profiler.withdraw(self._profile)
                self._profile = None
            return False
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._seen = seen
            if status.st_mtime_ns >= self._not_before:
                self._take(path)
        return True

    def _take(self, path: Path) -> None:
        try:
            request = control.read_request(path, environment.user(environment.LAGGARD_CONTROL_USER))
        except control.ControlError as error:
            _logger.warning("control file ignored: %s", error)
            return
        if request.id not in self._handled:
            self._handled.append(request.id)
            self._handle(request)

    def _handle(self, request: Request) -> None:
        def answer(reason: str) -> None:
            # By the drain thread at its next turn: this may be the training thread.
            self._replies.append(Reply(request.id, "failed", reason) if reason else Reply(request.id, "done"))

        part = self._trace if request.request == "trace" else self._profiler
        if not part.installed:
            answer(f"hook {part.name} is off in this process")
            return
        self._replies.append(Reply(request.id, "accepted"))
        if part is self._trace:
            self._trace.request(request.path, answer)
        else:
            self._profile = answer
            self._profiler.request(request.steps, request.path, answer, stacks=request.stacks)
