"""Other tools in a process that trains."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.support.launch import Launcher

pytestmark = pytest.mark.field

_PROGRAM = """
from gevent import monkey
monkey.patch_all(**{patched})
import threading
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
print([thread.name for thread in threading.enumerate()])
"""


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed: make field")
@pytest.mark.parametrize("real", [False, True])
def test_threads_that_are_greenlets_cost_one_line(real: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """The drain cannot run beside the script then, and the log names what to do; with threads of its own it can."""
    patched = {"thread": False, "queue": False} if real else {}
    with Launcher(tmp_path) as launcher:
        process = launcher.start(sys.executable, "-c", _PROGRAM.format(patched=patched))
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output == "['MainThread', 'laggard-drain']\n"
    assert [line.partition(":")[0] for line in errors.splitlines() if "greenlets" in line] == ["laggard"] * (not real)
