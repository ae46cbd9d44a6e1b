"""Optimizers around others, updates by hand, and loaded states."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import laggard
from laggard.shared.phases import Phase
from tests.instrumentation.inside import by_value, hook_named, instrumented, steps_of
from tests.instrumentation.loops import ROWS, loader, network, sgd, update
from tests.support.measured import measure


class Around:
    """ZeRO's and Megatron-LM's way: no optimizer of torch's, but around one; what else it does takes 10 ms."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def step(self) -> None:
        """Prepare, update, finish."""
        time.sleep(0.005)
        self.inner.step()
        time.sleep(0.005)

    def zero_grad(self) -> None:
        """Set the gradients to zero."""
        self.inner.zero_grad()


class Chained(Around):
    """Around one that is around one of torch's."""

    def step(self) -> None:
        """Prepare, update, finish."""
        time.sleep(0.005)
        with torch.no_grad():
            super().step()


class Lookahead(torch.optim.Optimizer):
    """Lookahead's and Accelerate's way: one of torch's by its class, whose constructor never runs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> Any:
        """Update, and go half the way."""
        self.inner.step(closure)
        time.sleep(0.01)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Set the gradients to zero."""
        self.inner.zero_grad(set_to_none)


class Trainer(Around):
    """No optimizer, in spite of its methods: its step is all of a train step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(sgd(model))
        self.model = model

    def step(self) -> None:
        """Work on the host, train."""
        time.sleep(0.005)
        update(self.model, self.inner, ROWS)


def optimizer_around_another(kind: Callable[[Any], Any]) -> None:
    """Train with an optimizer around one of torch's."""
    model = network()
    optimizer: Any = kind(sgd(model))
    for (rows,) in loader():
        update(model, optimizer, rows)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("kind", "least"),
    [(Around, 10), (Chained, 15), (lambda inner: Around(Chained(inner)), 25), (Lookahead, 10)],
)
def test_an_optimizer_around_another_is_one_update(kind: Callable[[Any], Any], least: int) -> None:
    """From the second update on all that the outermost one does is optimizer; uninstrument leaves the class alone."""
    before = [vars(kind)["step"] for kind in (Around, Chained, Lookahead)]
    with instrumented() as process:
        optimizer_around_another(kind)
        steps = steps_of(process)
    assert len(steps) == 6
    assert all(step.phases[Phase.OPTIMIZER] >= least * 10**6 for step in steps[1:])
    assert [vars(kind)["step"] for kind in (Around, Chained, Lookahead)] == before


def test_an_optimizer_that_is_pickled_by_value_steps_as_it_did() -> None:
    """Cloudpickle does it to a script's classes, on the way to Ray's workers."""
    with instrumented() as process:
        optimizer_around_another(Around)
        step = by_value(vars(Around)["step"])
        process.recorder.drain()
        model = network()
        model(ROWS).mean().backward()
        before = [parameter.clone() for parameter in model.parameters()]
        step(Around(sgd(model)))
        assert not all(map(torch.equal, before, model.parameters()))


@pytest.mark.timed
def test_a_train_step_by_the_name_of_an_optimizers_is_no_optimizer() -> None:
    """Whoever runs a backward pass in a method `step` has host code of its own there, from the third step on."""
    with instrumented() as process:
        trainer = Trainer(network())
        for _ in range(5):
            trainer.step()
        steps = steps_of(process)
    assert len(steps) == 5
    assert all(step.phases[Phase.OPTIMIZER] < 4 * 10**6 for step in steps[2:])


def test_updates_of_models_that_are_known_by_name_are_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in spaCy: each pipe of a pipeline runs forward, backward and its own update, and all of them are a step."""

    class Model:
        def __init__(self) -> None:
            self.network = network()

        def finish_update(self, optimizer: float) -> None:
            with torch.no_grad():
                for parameter in self.network.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(optimizer * parameter.grad)

    module = ModuleType("thinc.model")
    module.__dict__["Model"] = Model
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = vars(Model)["finish_update"]
    with instrumented() as process:
        pipeline = [Model(), Model()]
        for _ in range(6):
            for pipe in pipeline:
                pipe.network(ROWS).sum().backward()
                pipe.finish_update(0.01)
        steps = steps_of(process)
    assert [step.phases[Phase.OPTIMIZER] > 0 for step in steps] == [True] * 6
    assert vars(Model)["finish_update"] is before


def test_updates_by_hand_are_said_to_be_missing_once(caplog: pytest.LogCaptureFixture) -> None:
    """After a hundred backward passes one line says what to call; with named steps or an optimizer it says nothing."""
    parameter = torch.ones(2, requires_grad=True)

    def train(passes: int) -> None:
        for _ in range(passes):
            parameter.sum().backward()
            assert parameter.grad is not None
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None

    with instrumented() as process:
        hook = hook_named(process, "optimizer")
        train(99)
        assert (measure(hook), caplog.messages) == ({}, [])
        for _ in range(2):
            train(1)
            assert measure(hook) == {}
        (line,) = caplog.messages
        assert line == (
            "no optimizer step was seen in 100 backward passes, so no training step is measured; "
            "try `with laggard.step():` around each step of the loop"
        )
        assert steps_of(process) == []
    caplog.clear()
    with instrumented() as process:
        hook = hook_named(process, "optimizer")
        with laggard.step():
            train(1)
        hook.steps_ended(steps_of(process))
        train(200)
        assert (measure(hook), caplog.messages) == ({}, [])


def test_a_loaded_optimizer_keeps_its_step_out_of_the_histograms() -> None:
    """Going back to a checkpoint in the middle of a run excludes the step that it falls into, and no other."""
    with instrumented() as process:
        model = network()
        optimizer = sgd(model)
        for number, (rows,) in enumerate(loader()):
            if number == 3:
                optimizer.load_state_dict(optimizer.state_dict())
            update(model, optimizer, rows)
        assert [step.excluded for step in steps_of(process)] == ["first_batch", "", "", "resume", "", ""]
