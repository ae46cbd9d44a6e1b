"""What is done to a job from outside."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable

from lab.chaos.job import Job

_ATTACH = 16  # PTRACE_ATTACH
_HICCUP_SECONDS = 2.0


def _signal(number: signal.Signals) -> Callable[[Job, int], None]:
    return lambda job, rank: job.processes[rank].send_signal(number)


def _trace(job: Job, rank: int) -> None:
    if ctypes.CDLL(None, use_errno=True).ptrace(_ATTACH, job.processes[rank].pid, None, None):
        raise OSError(ctypes.get_errno(), "ptrace")


def _stop_worker(job: Job, rank: int) -> None:
    for worker in job.workers(rank):
        os.kill(worker, signal.SIGSTOP)


def _hiccup(job: Job, rank: int) -> None:
    job.processes[rank].send_signal(signal.SIGSTOP)
    time.sleep(_HICCUP_SECONDS)
    job.processes[rank].send_signal(signal.SIGCONT)


OUTSIDE: dict[str, Callable[[Job, int], None]] = {
    "stop": _signal(signal.SIGSTOP),
    "kill": _signal(signal.SIGKILL),
    "abort": _signal(signal.SIGABRT),
    "trace": _trace,
    "stop-worker": _stop_worker,
    "hiccup": _hiccup,
}
