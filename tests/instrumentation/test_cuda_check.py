"""The programs that a person with GPUs runs, as far as they can be run without any."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.launch import Launcher

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/instrumentation/programs/cuda_check.py"
RANKS = ROOT / "tests/instrumentation/programs/cuda_ranks.py"


#: The programs instrument themselves.
ALONE = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "laggard"}


def run(launcher: Launcher, program: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run a program; return its exit code and what it printed, errors last."""
    process = launcher.fork(program, *arguments, **ALONE, **environment)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU this is `make test-cuda`")
def test_without_a_gpu_it_says_so_and_ends_well(launcher: Launcher, tmp_path: Path) -> None:
    """One line, exit code 0, and no file of figures."""
    figures = tmp_path / "figures.json"
    skipped = f"skipped: torch {torch.__version__} finds no CUDA device here\n"
    assert run(launcher, PROGRAM, "--json", str(figures)) == (0, skipped, "")
    assert not figures.exists()


def test_a_check_that_does_not_exist_is_one_line(launcher: Launcher) -> None:
    """It is named, with all that there are in the usage above it."""
    code, _, errors = run(launcher, PROGRAM, "event")
    assert code == 2
    assert errors.splitlines()[-1] == "cuda_check.py: error: no such check: event"


@pytest.mark.timed
def test_slow_ranks_are_found_on_processors_too(launcher: Launcher) -> None:
    """The same program that judges ranks on GPUs finds its own delays right on two processes without any."""
    printed = launcher.run_ranks(2, RANKS, "--cpu", "--layouts", "fsdp2,parallel", **ALONE)
    # Older gloo says there who is connected, in pieces of lines.
    lines = [line for line in printed.splitlines() if "fsdp2" in line or "parallel" in line]
    assert [line.split()[:3] for line in lines] == [
        ["ok", "fsdp2", "forward"],
        ["ok", "fsdp2", "backward"],
        ["ok", "parallel", "forward"],
        ["ok", "parallel", "backward"],
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU this is `make test-cuda`")
def test_without_a_gpu_ranks_say_so_and_end_well(launcher: Launcher) -> None:
    """One line of the first rank, exit code 0."""
    assert run(launcher, RANKS, WORLD_SIZE="2", LOCAL_RANK="0") == (0, "skipped: torch finds no GPU\n", "")
