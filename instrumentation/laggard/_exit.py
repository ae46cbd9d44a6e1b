"""How a rank ends: cleanly, by an exception, with an exit code, or by SIGTERM. Each is reported, and none is changed.

SIGTERM keeps the action that the process gives it. Only the default action, which would end the process before
anything is reported, is delayed: for as long as the last report takes, and for 0.4 s at most. It is delayed beneath
Python (`_sigaction.c`). So ``signal.getsignal`` still says ``SIG_DFL``, whoever sets a handler finds none before it,
and a rank that hangs in native code ends too, even one that holds the interpreter lock. Where that part is not
compiled, the default action comes at once, and what was measured since the last report is lost.

A handler of the process's own decides what SIGTERM does. Beneath Python it is noted in the state file that it came: the
ranks of a job get it together, and one that leaves at once makes the others fail.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import util
from typing import Protocol

from laggard import _providers
from laggard._wakeup import Wakeup, sigaction
from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard.shared.statefile import EndedBy, Ending, StateWriter

#: What the last report of a clean end may take. A process that nobody listens to must still end.
FLUSH_SECONDS = 2.0
#: What a clean end may take with the providers' last sending, from the beginning of the last report.
_END_SECONDS = 2.2
#: What a failure may take. Its launcher is about to kill the process, and then the exit code would be another.
_FAILURE_SECONDS = 0.4
#: How long the default action of SIGTERM is delayed at most.
_DELAY_SECONDS = 0.4

#: The first process of a container: the kernel keeps a signal from it that has its default action.
_INIT = 1


class Finish(Protocol):
    """Reports all that is left; with ``flush`` it is sent too, since no handler of the SDK will run."""

    def __call__(self, ending: Ending, seconds: float, *, flush: bool) -> None: ...


class ExitHandling:
    """Calls ``finish`` once with the way in which the process ends."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._done = threading.Lock()
        self._finalizer: util.Finalize | None = None
        self._descriptor = -1

    def install(self, wakeup: Wakeup, file: StateWriter | None) -> None:
        """Register for every way to end. SIGTERM is delayed only where it has its default action. On any thread."""
        # Handlers run last in, first out: registered now, ours runs before the SDK's, which sends what we report.
        atexit.register(self._at_exit)
        if multiprocessing.parent_process() is not None:
            # A child of multiprocessing leaves through os._exit and never runs atexit handlers.
            self._finalizer = util.Finalize(None, self._at_exit, kwargs={"flush": True}, exitpriority=100)
        if sigaction is None:
            return
        if file is not None:
            with contextlib.suppress(OSError):
                sigaction.keep_ending(
                    file.descriptor,
                    statefile.SIZE,
                    statefile.STATE,
                    statefile.ENDING,
                    statefile.ENDED,
                    statefile.ASKED,
                    RankState.FINISHED,
                    RankState.FAILED,
                    statefile.pack(EndedBy.EXIT, 0),
                    statefile.pack(EndedBy.SIGNAL, 0),
                )
        self._descriptor = wakeup.descriptor
        self.delay_default()

    def delay_default(self) -> None:
        """Delay SIGTERM's default action, also where a handler has come and gone. On any thread.

        Where it has another or none, have the state file say that it came: the end that follows was asked for.
        """
        if sigaction is None:
            return
        if os.getpid() == _INIT or not sigaction.delay(signal.SIGTERM, self._descriptor, _DELAY_SECONDS):
            sigaction.note(signal.SIGTERM)

    def come_first(self) -> None:
        """Report before handlers that providers have registered since: they send what is reported. On any thread."""
        atexit.register(self._report)

    def remove(self) -> None:
        """Undo :meth:`install`; what others have installed since stays."""
        atexit.unregister(self._at_exit)
        atexit.unregister(self._report)
        if self._finalizer is not None:
            self._finalizer.cancel()
        if sigaction is not None:
            sigaction.give_back(signal.SIGTERM)
            sigaction.forget_file()

    @staticmethod
    def hold() -> None:
        """Stop the main thread for good: the process is about to end by SIGTERM. On the drain thread."""
        sigaction.hold_main_thread(signal.SIGTERM)

    @staticmethod
    def end() -> None:
        """Have SIGTERM act now that all is reported. On the drain thread."""
        sigaction.end(signal.SIGTERM)

    def fail(self, error: BaseException) -> None:
        """Report the exception that ended the training of a process that lives on: its own end is another's. Once."""
        if sigaction is not None:
            sigaction.forget_file()
        if self._done.acquire(blocking=False):
            self._finish(Ending(EndedBy.EXCEPTION, 1, _name(error)), _FAILURE_SECONDS, flush=True)

    def _report(self, *, flush: bool = False) -> float:
        """Report once. Return how long the end may take, in seconds."""
        if sigaction is not None:
            sigaction.leave()
        ending = how_it_ends()
        seconds = _FAILURE_SECONDS if ending.failed else _END_SECONDS
        if self._done.acquire(blocking=False):
            self._finish(ending, min(seconds, FLUSH_SECONDS), flush=flush)
        return seconds

    def _at_exit(self, *, flush: bool = False) -> None:
        began = time.monotonic()
        seconds = self._report(flush=flush)
        if not flush:
            _providers.end(max(0.0, began + seconds - time.monotonic()))
        if sigaction is not None:
            sigaction.give_back(signal.SIGTERM)


def how_it_ends() -> Ending:
    """Return how this process ends, as far as Python knows: not the code of a ``SystemExit`` that reached the top."""
    # A child of multiprocessing is still handling its exception; else the interpreter leaves what nothing caught.
    # What nothing caught at a prompt or in a notebook's cell ended that line alone.
    error = sys.exc_info()[1] or (None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    if error is None:
        return Ending()
    if isinstance(error, SystemExit):
        code = _exit_code(error.code)
        # torch.multiprocessing hands its exception to the parent, and exits while handling it.
        cause = error.__context__ if code else None
        return Ending(EndedBy.EXIT, code) if cause is None else Ending(EndedBy.EXCEPTION, code, _name(cause))
    if isinstance(error, KeyboardInterrupt) and multiprocessing.parent_process() is None:
        return Ending(EndedBy.SIGNAL, signal.SIGINT, _name(error))
    return Ending(EndedBy.EXCEPTION, 1, _name(error))


def _exit_code(code: object) -> int:
    """Return the exit code as the shell sees it. Python prints what is no number, and exits with 1."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
