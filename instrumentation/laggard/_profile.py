"""A profile by torch's own profiler, of the next steps of a job that runs.

The profiler has to be started and stopped on the training thread, between two steps. While nobody has asked for a
profile, that costs one look at an attribute a step. A script that profiles itself goes first: a request is refused
then, and a profile that runs makes way.
"""

from __future__ import annotations

import functools
import importlib
import logging
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from laggard._events import STEP_END
from laggard._hooks.base import Hook
from laggard._part import Host
from laggard._trace import default_path

if TYPE_CHECKING:
    from laggard._report import Report
    from laggard._trace import Answer

_logger = logging.getLogger(__name__)

#: A request waits so long for the end of a step.
_PATIENCE_SECONDS = 600.0
#: What the end of the process waits for a file that is being written.
_EXPORT_SECONDS = 10.0


@dataclass
class _Capture:
    """One profile, from the request to the file."""

    steps: int
    path: Path
    answer: Answer
    deadline: float
    stacks: bool = False
    #: Who asked does not wait for it any more.
    withdrawn: bool = False
    thread: int = 0
    profiler: Any = None
    #: Writes the file, once the last step has ended.
    export: threading.Thread | None = None


class Profiler(Hook):
    """Starts and stops torch's profiler when it is asked to."""

    name = "profile"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._requests: deque[tuple[int, str, Answer, bool]] = deque(maxlen=16)
        self._capture: _Capture | None = None
        self._starting = False
        #: The script names its steps, so that they count and not the updates of its optimizers.
        self.named_steps = False
        #: Profilers of the script that have been prepared and have not ended.
        self._others: WeakSet[Any] = WeakSet()

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch's profiler, to know when the script uses it."""
        return {"torch.autograd.profiler": self._patch}

    def uninstall(self) -> None:
        """Undo the patches and end a profile that runs."""
        super().uninstall()
        self._cancel("laggard was taken out of the process")

    def request(self, steps: int, path: str = "", answer: Answer | None = None, *, stacks: bool = False) -> None:
        """Have the next steps profiled, to a file in the state folder unless ``path`` names another. On any thread."""
        self._requests.append((steps, path, answer or _say, stacks))

    def withdraw(self, answer: Answer) -> None:
        """Drop the profile that was asked for with ``answer``, at the next end of a step if it has begun."""
        for request in list(self._requests):
            if request[2] is answer:
                self._requests.remove(request)
        capture = self._capture
        if capture is not None and capture.answer is answer:
            # Only the thread that started it can stop it.
            capture.withdrawn = True

    def report(self, report: Report) -> None:
        """Take up a request: from now on the ends of steps are looked at."""
        while self._requests:
            if self._capture is not None and self._capture.withdrawn:
                # It makes room at the next end of a step, without which there is nothing to profile either.
                return
            steps, path, answer, stacks = self._requests.popleft()
            if self._capture is not None:
                answer("profile refused: another one is not finished")
            elif "torch" not in sys.modules:
                answer("profile refused: this process does not use torch")
            else:
                importlib.import_module("torch.profiler")  # not on the training thread
                target = Path(path) if path else default_path(report.identity, "profile")
                self._capture = _Capture(steps, target, answer, time.monotonic() + _PATIENCE_SECONDS, stacks)
                self.host.at_step = self._at_step

    def finish(self, *, export: bool) -> None:
        """End a profile that runs when its process does, with what there is of it."""
        capture = self._capture
        if capture is None:
            return
        if export and capture.export is not None:
            capture.export.join(_EXPORT_SECONDS)
        elif export and not capture.withdrawn and capture.profiler is not None and capture.thread == get_ident():
            try:
                self._stop(capture)
                self._export(capture)
            except Exception as error:
                self._end(capture, f"profile ended early: {error}")
        else:
            # Not stopped: that takes time, and a process that was told to end has none.
            self._end(capture, "profile ended early: the process ended")

    def forked(self) -> None:
        """Forget the parent's profile; its profiler must not be touched here."""
        self._requests.clear()
        self._capture = None
        self.host.at_step = None

    def _at_step(self, code: int) -> None:
        """Take the end of a step, on the training thread."""
        capture = self._capture
        if capture is None:
            self.host.at_step = None
            return
        try:
            if self.named_steps and code != STEP_END:
                return
            if capture.withdrawn:
                self._drop(capture)
            elif capture.profiler is None:
                self._start(capture)
            elif capture.thread == get_ident():
                capture.steps -= 1
                if not capture.steps:
                    self._stop(capture)
                    capture.export = threading.Thread(
                        target=self._export, args=(capture,), name="laggard-profile", daemon=True
                    )
                    capture.export.start()
        except Exception as error:
            self._cancel(f"{type(error).__name__}: {error}")

    def _start(self, capture: _Capture) -> None:
        torch: Any = sys.modules["torch"]
        if time.monotonic() > capture.deadline:
            self._end(capture, f"profile given up: no step ended within {_PATIENCE_SECONDS:.0f} s")
            return
        if self._others or torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001 - what torch itself asks
            self._end(capture, "profile refused: the script itself is profiling")
            return
        self._starting = True
        try:
            profiler = torch.profiler.profile(with_stack=capture.stacks)
            profiler.start()
        finally:
            self._starting = False
        capture.thread = get_ident()
        capture.profiler = profiler

    def _drop(self, capture: _Capture) -> None:
        if capture.profiler is None:
            self._end(capture, "profile withdrawn")
        elif capture.thread == get_ident():
            self._stop(capture)
            self._end(capture, "profile withdrawn")

    def _stop(self, capture: _Capture) -> None:
        self.host.at_step = None
        capture.profiler.stop()

    def _export(self, capture: _Capture) -> None:
        """Write the file under another name until it is whole. This takes as long as the steps had events."""
        path = capture.path
        # The exporter takes the compression from the name's end.
        temporary = path.with_name(f".{secrets.token_hex(8)}{''.join(path.suffixes[-2:])}")
        try:
            capture.profiler.export_chrome_trace(str(temporary))
            if capture.withdrawn:
                temporary.unlink()
            else:
                temporary.replace(path)
        except Exception as error:
            temporary.unlink(missing_ok=True)
            self._end(capture, f"profile cannot be written to {path}: {error}")
        else:
            self._end(capture, "profile withdrawn" if capture.withdrawn else "")
            if not capture.withdrawn:
                _logger.info("a profile is in %s", path)

    def _cancel(self, reason: str) -> None:
        capture = self._capture
        if capture is None or capture.export is not None:
            return
        if capture.profiler is not None:
            if capture.thread != get_ident():
                # Only the thread that started it can stop it: at the end of its step.
                capture.steps = 1
                return
            try:
                self._stop(capture)
            except Exception as error:
                reason = f"{reason}; {error}"
        self._end(capture, f"profile ended early: {reason}")

    def _end(self, capture: _Capture, reason: str) -> None:
        if self._capture is capture:
            self.host.at_step = None
            self._capture = None
            capture.profiler = None
            capture.answer(reason)

    def _patch(self, module: ModuleType) -> None:
        profile: Any = module.profile
        prepare = "_prepare_trace" if hasattr(profile, "_prepare_trace") else "__enter__"
        self.replace(profile, prepare, self._wrap_prepare)
        if hasattr(profile, "_start_trace"):
            self.replace(profile, "_start_trace", self._wrap_start)
        self.replace(profile, "__exit__", self._wrap_exit)

    def _wrap_prepare(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(prepare)
        def prepare_trace(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._starting:
                self._cancel("the script itself begins to profile")
                self._others.add(profile)
            return prepare(profile, *args, **kwargs)

        return prepare_trace

    def _wrap_start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def _start_trace(profile: Any, *args: Any, **kwargs: Any) -> Any:
            for observer in self.host.profiler_observers:
                observer(True)
            try:
                return start(profile, *args, **kwargs)
            finally:
                for observer in self.host.profiler_observers:
                    observer(False)

        return _start_trace

    def _wrap_exit(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def __exit__(profile: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for the method
            self._others.discard(profile)
            return leave(profile, *args, **kwargs)

        return __exit__


def _say(reason: str) -> None:
    if reason:
        _logger.warning("%s", reason)
