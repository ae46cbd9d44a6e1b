"""Trainers that a script hands its loop to: without a line of ours, their steps are our steps."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from tests.support.cases import usual
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver

PROGRAM = PROGRAMS / "frameworks.py"

#: Every framework trains in every precision; `usual()` has each framework and each precision once.
TRAINERS = tuple(itertools.product(("transformers", "accelerate", "lightning"), ("float32", "bf16")))

#: 22 rows in batches of two, two batches a step: six steps an epoch, the last one of a single batch.
STEPS = 12


@pytest.mark.parametrize(
    ("framework", "precision"),
    usual(TRAINERS, ("transformers", "bf16"), ("accelerate", "float32"), ("lightning", "bf16")),
)
def test_steps_are_the_trainers_own(framework: str, precision: str, launcher: Launcher, receiver: Receiver) -> None:
    """With accumulation over an odd number of batches and evaluation in between the counts are equal.

    Each phase of a step has time in it.
    """
    pytest.importorskip(framework)
    printed = launcher.run_forked(
        PROGRAM, framework, precision, **receiver.environment, LAGGARD_WARMUP_STEPS="0", HF_HUB_OFFLINE="1"
    )
    assert int(printed.splitlines()[-1]) == STEPS
    assert receiver.value("training.steps") == STEPS
    assert receiver.value("training.steps.skipped") == 0
    for phase in ("data", "forward", "backward", "optimizer"):
        assert receiver.value("training.phase.duration", training__phase=phase).sum > 0
    excluded = sum(receiver.series("training.steps.excluded").values())
    assert receiver.value("training.step.duration").count == STEPS - excluded


def test_laggard_run_is_enough(launcher: Launcher, receiver: Receiver) -> None:
    """The command of ours does the same as OpenTelemetry's launcher."""
    pytest.importorskip("accelerate")
    laggard = Path(sys.executable).with_name("laggard")
    printed = launcher.run(laggard, "run", "python", PROGRAM, "accelerate", **receiver.environment)
    assert int(printed.splitlines()[-1]) == receiver.value("training.steps") == STEPS
