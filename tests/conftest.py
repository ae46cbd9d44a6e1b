"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let SIGINT and SIGQUIT reach what tests start: a shell has what it starts in the background ignore them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
