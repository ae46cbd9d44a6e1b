"""The process's OpenTelemetry providers at its end: what is left is sent, but an end is never waited for.

The SDK sends what it holds when the interpreter exits, and tries for 10 seconds and more where nobody listens. Here
all providers flush at once, within a time limit. Where that works at once, everything else is left to the SDK. Where
it does not, the providers are shut down here, within what is left of the time, and the SDK's own handlers, which
would try it all again, are taken out.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
import time
from typing import Any

from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import get_tracer_provider

#: An endpoint that answers takes all within this time, and then once more when the SDK shuts down.
_PROMPT_SECONDS = 0.5

_logger = logging.getLogger(__name__)


def flush(seconds: float) -> bool:
    """Have all providers send what they hold; return whether they did so within the time."""
    return _all_at_once("force_flush", seconds)


def end(seconds: float) -> None:
    """Send what is left at the end of the process, and see to it that nobody tries longer than ``seconds``."""
    deadline = time.monotonic() + seconds
    if flush(min(_PROMPT_SECONDS, seconds)) or _all_at_once("shutdown", deadline - time.monotonic()):
        return
    for provider in _providers():
        shutdown = getattr(provider, "shutdown", None)
        if shutdown is not None:
            atexit.unregister(shutdown)
    # Threads that still try must not be inside a write to stderr when the interpreter ends: that aborts the process.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    _logger.warning("the last metrics or spans could not be sent within %.1f s", seconds)


def _providers() -> list[Any]:
    providers: list[Any] = [get_meter_provider(), get_tracer_provider()]
    logs: Any = sys.modules.get("opentelemetry._logs")
    if logs is not None:
        providers.append(logs.get_logger_provider())
    return providers


def _all_at_once(method: str, seconds: float) -> bool:
    """Call a method of every provider that has it, each on a thread of its own, since not all keep to a time limit."""
    deadline = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_call, args=(call,), name=f"laggard-{method}", daemon=True)
        for call in (getattr(provider, method, None) for provider in _providers())
        if call is not None
    ]
    for thread in threads:
        # At the end of a process threads can not always be started.
        with contextlib.suppress(RuntimeError):
            thread.start()
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _call(method: Any) -> None:
    with contextlib.suppress(Exception):
        method()
