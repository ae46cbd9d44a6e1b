"""What holds for all tests."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

import pytest

#: What a test that ``make check`` leaves out would import.
HEAVY = ("torch", "transformers", "lightning")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag of ``make check``."""
    parser.addoption("--check", action="store_true", help="skip what imports torch or starts a process")


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGINT and SIGQUIT reach what tests start: a shell has what it starts in the background ignore them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # Where tests run in several processes, pytest gives these its own terminal's width, by which commands wrap lines.
    os.environ.pop("COLUMNS", None)
    # At its default of 100 Go's garbage collector takes a tenth of the processor time of the servers that tests start.
    os.environ["GOGC"] = "400"
    # With several processes the first one starts them, and tests run in those.
    if config.getoption("check") and (hasattr(config, "workerinput") or not config.getoption("numprocesses")):
        _leave_out_what_is_slow()


def _leave_out_what_is_slow() -> None:
    """Skip a test at the moment at which it wants torch or a process: no list of such tests can be out of date."""

    class Heavy(MetaPathFinder):
        """Finds no module, but skips who looks for a heavy one."""

        def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
            """Skip, or leave it to the others."""
            if fullname in HEAVY:
                pytest.skip(f"imports {fullname}", allow_module_level=True)
            return None

    def refuse(*_args: Any, **_keywords: Any) -> NoReturn:
        pytest.skip("starts a process", allow_module_level=True)

    platform.processor()  # asks a process, once
    sys.meta_path.insert(0, Heavy())
    subprocess.Popen.__new__ = refuse
    os.fork = refuse
