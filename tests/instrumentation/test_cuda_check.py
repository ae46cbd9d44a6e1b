"""The programs that a person with GPUs runs, as far as they can be run without any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/instrumentation/programs/cuda_check.py"
RANKS = ROOT / "tests/instrumentation/programs/cuda_ranks.py"


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


@pytest.mark.timed
def test_slow_ranks_are_found_on_processors_too(tmp_path: Path) -> None:
    """The same program that judges ranks on GPUs finds its own delays right on two processes without any."""
    environment = {**os.environ, "LAGGARD_RUN": "test", "LAGGARD_STATE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", "2", RANKS, "--cpu", "--layouts", "fsdp2"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Older gloo says there who is connected, in pieces of lines.
    lines = [line for line in done.stdout.splitlines() if "fsdp2" in line]
    assert [line.split()[:3] for line in lines] == [
        ["ok", "fsdp2", "forward"],
        ["ok", "fsdp2", "backward"],
    ]


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="with two GPUs this is `make test-cuda`")
def test_without_two_gpus_ranks_say_so_and_end_well() -> None:
    """One line of the first rank, exit code 0."""
    environment = {**os.environ, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = subprocess.run([sys.executable, RANKS], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (
        0,
        f"skipped: 2 GPUs are needed, torch finds {torch.cuda.device_count()}\n",
    )
