"""Backward passes: one interval each, whoever runs the engine, and the engine as it was to others."""

from __future__ import annotations

import threading

import pytest
import torch

from laggard._events import CODE_BITS, GRADIENT, OPTIMIZER_STEP
from laggard.shared.phases import Phase
from tests.instrumentation.inside import instrumented
from tests.instrumentation.loops import run_engine


@pytest.mark.parametrize("way", ["engine", "Tensor.backward", "autograd.backward", "autograd.grad", "nested"])
def test_a_backward_pass_is_one_whoever_runs_it(way: str) -> None:
    """The engine called directly, through each function of torch, and inside of itself: one interval, one pass."""
    with instrumented() as process:
        x = torch.ones(2, requires_grad=True)
        loss = x.sum()
        if way == "nested":
            loss.register_hook(torch.enable_grad()(lambda _: run_engine(x.sum())))
        {
            "engine": run_engine,
            "Tensor.backward": torch.Tensor.backward,
            "autograd.backward": torch.autograd.backward,
            "autograd.grad": lambda loss: torch.autograd.grad(loss, x),
            "nested": run_engine,
        }[way](loss)
        (code,) = [code for code, _, _ in process.recorder.drain()]
        assert code == (GRADIENT if way == "autograd.grad" else Phase.BACKWARD)
        assert process.recorder.backwards == (way != "autograd.grad")


def test_the_engine_is_what_it_was_to_others() -> None:
    """Who asks for the engine's class or its callbacks finds them, and uninstrument puts the very object back."""
    variable = torch.autograd.Variable
    before = variable._execution_engine
    with instrumented():
        engine = variable._execution_engine
        assert isinstance(engine, type(before))
        assert type(engine).__name__ == type(before).__name__
        called: list[bool] = []
        x = torch.ones(2, requires_grad=True)
        loss = x.sum()
        loss.register_hook(lambda _: engine.queue_callback(lambda: called.append(True)))
        loss.backward()
        assert called == [True]
    assert variable._execution_engine is before


def test_a_gradient_alone_is_no_proof_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces of a molecule, saliency: a model that only takes gradients is not reported; a backward pass proves it."""
    with instrumented() as process:
        proofs: list[bool] = []
        monkeypatch.setattr(process, "training_evidence", lambda: proofs.append(True))
        x = torch.ones(2, requires_grad=True)
        torch.autograd.grad(x.sum(), x)
        assert (proofs, process.recorder.thread) == ([], 0)
        x.sum().backward()
        assert (proofs, process.recorder.thread) == ([True], threading.get_ident())


def test_a_loop_whose_backward_passes_run_on_other_threads_has_its_steps() -> None:
    """As on the pool of a server: each update is seen, and each forward but the first."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with instrumented() as process:
        for _ in range(3):
            thread = threading.Thread(target=model(torch.ones(1, 2)).sum().backward)
            thread.start()
            thread.join()
            optimizer.step()
        codes = [code & CODE_BITS for code, began, ended in process.recorder.drain() if ended > began]
    assert codes == [Phase.BACKWARD, OPTIMIZER_STEP, *[Phase.FORWARD, Phase.BACKWARD, OPTIMIZER_STEP] * 2]
