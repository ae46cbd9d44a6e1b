"""The runtime of a device is told that this thread asks for events while another one captures a graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HIP = ("libamdhip64.so.7", "hipThreadExchangeStreamCaptureMode")
CUDA = ("libcudart.so.13", "cudaThreadExchangeStreamCaptureMode")

#: Asks before a runtime is loaded, loads the one that is named, asks again, and prints the mode of its thread.
PROGRAM = """
import ctypes, sys
from laggard._hooks.device import _keep_out_of_captures

def ask():
    try:
        _keep_out_of_captures()
    except (OSError, AttributeError) as error:
        print(type(error).__name__, error)
    else:
        print("mode", runtime.noted())

ask()
runtime = ctypes.CDLL(sys.argv[1])
ask()
"""


def asked(library: Path, function: str, body: str) -> list[str]:
    """Compile a runtime with one function that takes a pointer ``m``, and return what the program prints."""
    source = f"static __thread int mode; int noted(void) {{ return mode; }} int {function}(int *m) {{ {body} }}"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)], capture_output=True, text=True, timeout=120, check=True
    )
    first, second = result.stdout.splitlines()
    assert first == "OSError torch's device runtime is not a library of its own"
    return [second]


@pytest.mark.parametrize(("library", "function"), [HIP, CUDA])
def test_each_vendors_runtime(tmp_path: Path, library: str, function: str) -> None:
    """CUDA's and HIP's runtimes are found by what is loaded, and the thread's mode is relaxed then."""
    exchange = "int old = mode; mode = *m; *m = old; return 0;"
    assert asked(tmp_path / library, function, exchange) == ["mode 2"]


@pytest.mark.parametrize(("library", "function"), [HIP, CUDA])
def test_a_runtime_that_refuses(tmp_path: Path, library: str, function: str) -> None:
    """One that refuses is an error, which leaves the host's clock."""
    assert asked(tmp_path / library, function, "return *m;") == [f"OSError {function} failed"]


def test_a_runtime_without_the_function(tmp_path: Path) -> None:
    """An older runtime that does not have it is an error too."""
    (said,) = asked(tmp_path / HIP[0], "hipOther", "return *m;")
    assert said.startswith("AttributeError")
    assert "hipThreadExchangeStreamCaptureMode" in said
