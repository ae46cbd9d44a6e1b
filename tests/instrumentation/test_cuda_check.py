"""The program that a person with a GPU runs, as far as it can be run without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/instrumentation/programs/cuda_check.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU this is `make test-cuda`")
def test_without_a_gpu_it_says_so_and_ends_well(tmp_path: Path) -> None:
    """One line, exit code 0, and no file of figures."""
    done = run("--json", str(tmp_path / "figures.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"skipped: torch {torch.__version__} finds no CUDA device here\n"
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_does_not_exist_is_one_line() -> None:
    """It is named, with all that there are in the usage above it."""
    done = run("event")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "cuda_check.py: error: no such check: event"
