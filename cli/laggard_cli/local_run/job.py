"""The job as a child of this process, to whoever started us as if it were this process itself.

The job keeps our process group, terminal and files. What a terminal, a shell or a scheduler sends to the whole group
reaches it without us; what is sent to this process alone is passed on. Which of both it was is told by a witness, a
process of the same group: what it gets too, the job has got. This process ends as the job did: with its exit code,
or by its signal. If this process is killed, the kernel sends the job SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from laggard_cli.local_servers.processes import end_with, how_it_ended

#: How long the witness may need to report a signal that the whole group got.
WITNESS_SECONDS = 0.2
#: Exit code of a command that cannot be started, as a shell has it.
_NOT_STARTED = 127
#: Not passed on: what stops or continues a process is this one's own business, as are the ends of its children and what
#: its own faults and limits raise.
_OWN = frozenset(
    getattr(signal, name)
    for name in (
        *("SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD", "SIGPIPE", "SIGXCPU", "SIGXFSZ"),
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"),
    )
)
PASSED_ON = frozenset(signal.valid_signals()) - _OWN
#: By these a user says that it is enough.
_ENOUGH = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


def ignore(*_: object) -> None:
    """Handle a signal that only the wakeup descriptor is to hear of."""


class Job:
    """A command that runs as a child of this process, from the construction on. Made once, in the main thread.

    Args:
        program: path of what is executed.
        arguments: its arguments, the name of the program first.
        environment: the whole of it.
    """

    def __init__(self, program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._witness: socket.socket | None = None
        self._witness_pid = 0
        self._witness_status = 0
        self._witnessed: dict[int, float] = {}
        self._waiting: dict[int, float] = {}
        self._status: int | None = None
        self._signals, wakeup = socket.socketpair()
        for end in (self._signals, wakeup):
            end.setblocking(False)
        self._wakeup = wakeup
        parent = os.getpid()
        # What arrives before all is set up waits.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        self.pid = os.fork()
        if not self.pid:
            _execute(program, arguments, environment, parent, before)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        for number in (*PASSED_ON, signal.SIGCHLD):
            signal.signal(number, ignore)
        self._before = before

    def watch(self, monitor: Callable[[socket.socket], None]) -> None:
        """Start the witness, which calls ``monitor`` with the socket on which it reports signals, one byte each.

        It ends when that returns. Without one, as where no process can be made, every signal is passed on.
        """
        ours, theirs = socket.socketpair()
        try:
            self._witness_pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if not self._witness_pid:
            code = 1
            try:
                ours.close()
                self._signals.close()
                self._wakeup.close()
                theirs.setblocking(False)
                signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
                monitor(theirs)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self._witness = ours

    def wait(self) -> int:
        """Pass signals on until the job ends; tell the witness and return its status as waitpid has it."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
        while self._status is None:
            for number in self._heard(self._next_deadline()):
                self._on_signal(number)
            self._pass_on()
        if self._witness is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._witness.sendall(str(self._status).encode())
        return self._status

    def let_witness_end(self, seconds: float) -> str:
        """Wait until the witness has ended, and return why that was not its own end; empty where it was.

        It is killed after ``seconds``, or when the user sends this process another signal to end.
        """
        deadline = time.monotonic() + seconds
        while self._witness_pid:
            left = max(0.0, deadline - time.monotonic())
            enough = _ENOUGH & set(self._heard(left)) if left else set[int]()
            if enough or not left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._witness_pid, signal.SIGKILL)
                os.waitpid(self._witness_pid, 0)
                return f"another {signal.Signals(min(enough)).name}" if enough else f"not ready after {seconds:.0f} s"
            self._reap()
        code = os.waitstatus_to_exitcode(self._witness_status)
        return f"the monitor ended {how_it_ended(code)}" if code else ""

    def _heard(self, seconds: float | None) -> Iterator[int]:
        """Wait for signals and give those of this process; keep what the witness reports."""
        readers = [self._signals, *([self._witness] if self._witness else [])]
        ready, _, _ = select.select(readers, [], [], seconds)
        now = time.monotonic()
        if self._witness is not None and self._witness in ready:
            reported = self._witness.recv(4096)
            if not reported:
                self._witness.close()
                self._witness = None
            for number in reported:
                if self._waiting.pop(number, None) is None:
                    self._witnessed[number] = now
        if self._signals in ready:
            yield from self._signals.recv(4096)

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if number == signal.SIGCHLD:
            self._reap()
        elif now - self._witnessed.pop(number, -WITNESS_SECONDS) >= WITNESS_SECONDS:
            self._waiting.setdefault(number, now + (WITNESS_SECONDS if self._witness else 0))

    def _pass_on(self) -> None:
        """Send the job what the witness did not get."""
        now = time.monotonic()
        for number in [number for number, deadline in self._waiting.items() if deadline <= now]:
            del self._waiting[number]
            if self._status is None:
                os.kill(self.pid, number)

    def _next_deadline(self) -> float | None:
        return max(0.0, min(self._waiting.values()) - time.monotonic()) if self._waiting else None

    def _reap(self) -> None:
        """Take note of every child that ended; as the first process of a container we inherit those of others."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self._status = ended[1]
                elif ended[0] == self._witness_pid:
                    self._witness_pid, self._witness_status = 0, ended[1]


def end_as(status: int) -> NoReturn:
    """End this process as a child did: with its exit code, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # One core of the job's own is enough.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        # The first process of a container does not die of it.
        os._exit(128 + number)
    os._exit(os.waitstatus_to_exitcode(status))


def _execute(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], parent: int, mask: Iterable[int]
) -> NoReturn:
    """Become the job."""
    try:
        end_with(parent, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(program, list(arguments), environment)  # noqa: S606 - handing over is the purpose
    except OSError as error:
        os.write(2, f"laggard run: error: {program}: {error.strerror}\n".encode())
    finally:
        os._exit(_NOT_STARTED)
