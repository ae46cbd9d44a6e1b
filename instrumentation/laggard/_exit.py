"""How a rank ends: cleanly, by an exception, or by SIGTERM. Each is reported before the process is gone."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import util
from types import FrameType
from typing import Protocol

from laggard import _providers
from laggard.conventions import RankState

#: What the last report may take. A process that nobody listens to must still end.
FLUSH_SECONDS = 2.0
#: What an exit may take with the providers' last sending, from the beginning of the last report.
_END_SECONDS = 2.2
#: How long the main thread gets to act on SIGTERM before the drain thread does it.
_GRACE_SECONDS = 0.5


class Finish(Protocol):
    """Reports all that is left; with ``flush`` it is sent too, since no handler of the SDK will run."""

    def __call__(self, state: RankState, *, flush: bool) -> None: ...


class ExitHandling:
    """Calls ``finish`` once with the state in which the process ends."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._done = threading.Lock()
        self._terminating = False
        self._finalizer: util.Finalize | None = None
        self._handles_sigterm = False

    def install(self) -> None:
        """Register for every way to end. SIGTERM is taken only from its default action, on the main thread."""
        # Handlers run last in, first out: registered now, ours runs before the SDK's, which sends what we report.
        atexit.register(self._at_exit)
        on_main_thread = threading.current_thread() is threading.main_thread()
        if multiprocessing.parent_process() is not None:
            # A child of multiprocessing leaves through os._exit and never runs atexit handlers.
            self._finalizer = util.Finalize(None, self._at_exit, kwargs={"flush": True}, exitpriority=100)
        if on_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._handles_sigterm = True

    def remove(self) -> None:
        """Undo :meth:`install`; what others have installed since stays."""
        atexit.unregister(self._at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()
        if self.owns_sigterm() and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles_sigterm = False

    def terminate_unless_main_does(self) -> None:
        """Die by SIGTERM when the main thread is stuck where no Python handler runs. On the drain thread."""
        time.sleep(_GRACE_SECONDS)
        if self._terminating:
            return
        # Only the main thread may use signal.signal; the C function has no such rule.
        restore = ctypes.CDLL(None).signal
        restore.argtypes = [ctypes.c_int, ctypes.c_void_p]
        restore(signal.SIGTERM, None)
        os.kill(os.getpid(), signal.SIGTERM)

    def owns_sigterm(self) -> bool:
        """Return whether SIGTERM ends this process by our handler; a handler of the user's own decides itself."""
        return self._handles_sigterm and signal.getsignal(signal.SIGTERM) == self._on_sigterm

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._terminating = True
        self._once(RankState.FAILED, flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _at_exit(self, *, flush: bool = False) -> None:
        began = time.monotonic()
        self._once(RankState.FAILED if _ended_by_exception() else RankState.FINISHED, flush=flush)
        if not flush:
            _providers.end(max(0.0, began + _END_SECONDS - time.monotonic()))

    def _once(self, state: RankState, *, flush: bool) -> None:
        if self._done.acquire(blocking=False):
            self._finish(state, flush=flush)


def _ended_by_exception() -> bool:
    # The interpreter leaves the exception that nothing caught here; a child of multiprocessing is still handling it.
    return getattr(sys, "last_value", None) is not None or sys.exc_info()[0] is not None
