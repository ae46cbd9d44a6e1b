"""Gradient scalers: updates that are left out, and devices that tell of them later."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from laggard._events import SKIPPED
from tests.instrumentation.inside import hook_named, instrumented, phases, steps_of
from tests.instrumentation.loops import ROWS, network, sgd


def scaled(found: list[bool], *, fused: bool = False, optimizers: int = 1, micro: int = 1) -> None:
    """Mixed precision: gradients that are not finite where ``found`` says so."""
    models = [network() for _ in range(optimizers)]
    steppers = [sgd(model, fused=fused) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for infinite in found:
        for _ in range(micro):
            for number, model in enumerate(models):
                loss = model(ROWS).square().mean()
                # Only the last optimizer meets them.
                scaler.scale(loss * (float("inf") if infinite and number == optimizers - 1 else 1.0)).backward()
        for stepper in steppers:
            if not fused:
                scaler.unscale_(stepper)
            scaler.step(stepper)
        scaler.update()
        for stepper in steppers:
            stepper.zero_grad()


@pytest.mark.parametrize(
    "options", [{}, {"fused": True}, {"optimizers": 2}, {"micro": 3}], ids=["plain", "fused", "two", "accumulated"]
)
def test_an_update_that_a_scaler_leaves_out_is_a_step_and_is_counted(options: Any) -> None:
    """Steps and skipped steps are exact, also for an optimizer that is only told on its device not to update."""
    found = [True, False, False, True, True, False]
    with instrumented() as process:
        scaled(found, **options)
        steps = steps_of(process)
    assert [step.skipped for step in steps] == found
    assert all(phases(step) == {"forward", "backward", "optimizer"} for step in steps[1:])


def test_a_disabled_scaler_adds_nothing() -> None:
    """With the scaler off its step is the optimizer's, and no update of it is one."""
    with instrumented() as process:
        model = network()
        optimizer = sgd(model)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for _ in range(4):
            for _micro in range(2):
                scaler.scale(model(ROWS).square().mean()).backward()
                scaler.update()
            scaler.step(optimizer)
        assert [step.skipped for step in steps_of(process)] == [False] * 4


def test_a_device_that_is_behind_tells_of_a_skipped_update_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied from a device is looked at when it has arrived, one update later or more, and never awaited."""

    class OnDevice:
        is_cuda, is_cpu = True, False

    class Arriving:
        value = -1.0

        def item(self) -> float:
            return self.value

    class Scaler:
        _per_optimizer_states: ClassVar[Any] = {0: {"found_inf_per_device": {"cuda": OnDevice()}}}

    with instrumented() as process:
        hook: Any = hook_named(process, "scaler")
        copies: list[Arriving] = []
        hook._copy = lambda _tensor: copies.append(Arriving()) or copies[-1]
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", bool)
        skipped: list[int] = []
        for arrived in ({}, {0: 1.0}, {}, {1: 0.0, 2: 1.0}):
            for number, value in arrived.items():
                copies[number].value = value
            hook._note(Scaler())
            skipped.append(sum(code == SKIPPED for code, _, _ in process.recorder.drain()))
    assert skipped == [0, 1, 0, 1]
    assert len(hook._awaited) == 1
