"""Every shape of training loop: how many steps it takes, and what they are made of."""

# ruff: noqa: D103 - the names of the loops say what they are

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import laggard
from laggard._events import GRADIENT, SKIPPED
from laggard.shared.phases import Phase
from tests.instrumentation.inside import hook_named, instrumented, phases, steps_of
from tests.support.measured import measure

PLAIN = {"data", "forward", "backward", "optimizer"}
ROWS = torch.linspace(-1, 1, 48).reshape(12, 4)


class Stream(IterableDataset[torch.Tensor]):
    """Rows without a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(ROWS)


class Both(torch.optim.SGD):
    """Sharpness-aware: a step that runs a closure with a backward, and then its parent's step."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        super().step()
        return loss


def network() -> nn.Module:
    """A small model, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def run_engine(loss: torch.Tensor) -> None:
    """Run the backward pass as the functions of torch do."""
    torch.autograd.Variable._execution_engine.run_backward(
        tensors=(loss,),
        grad_tensors=(torch.ones_like(loss),),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def loader(**options: Any) -> DataLoader[Any]:
    """Six batches."""
    return DataLoader(TensorDataset(ROWS), batch_size=2, **options)


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """An optimizer of all parameters."""
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    """Forward, backward, update."""
    model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def evaluate(model: nn.Module, batches: Any) -> None:
    """A pass without gradients."""
    model.eval()
    with torch.no_grad():
        for (rows,) in batches:
            model(rows)
    model.train()


def plain() -> None:
    model = network()
    optimizer = sgd(model)
    for (rows,) in loader():
        update(model, optimizer, rows)


def persistent_workers() -> None:
    model = network()
    optimizer = sgd(model)
    batches = loader(num_workers=1, persistent_workers=True)
    for _epoch in range(2):
        for (rows,) in batches:
            update(model, optimizer, rows)


def iterable_data_set() -> None:
    model = network()
    optimizer = sgd(model)
    for rows in DataLoader(Stream(), batch_size=4):
        update(model, optimizer, rows)


def generator() -> None:
    model = network()
    optimizer = sgd(model)
    for rows in ROWS.split(4):
        update(model, optimizer, rows)


def foreign_loader() -> None:
    model = network()
    optimizer = sgd(model)
    for number in range(3):
        with laggard.phase("data"):
            rows = ROWS[number : number + 4]
        update(model, optimizer, rows)


def accumulation() -> None:
    model = network()
    optimizer = sgd(model)
    for number, (rows,) in enumerate(loader()):
        model(rows).square().mean().backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def two_models_and_optimizers() -> None:
    generator_, critic = network(), network()
    optimizers = [sgd(generator_), sgd(critic)]
    for (rows,) in loader():
        update(critic, optimizers[1], rows)
        update(generator_, optimizers[0], rows)


def read_ahead(batches: Any) -> Iterator[Any]:
    """Fetch each batch before the one before it is handed out, as Accelerate and Lightning do."""
    iterator = iter(batches)
    newest = next(iterator)
    for following in iterator:
        yield newest
        newest = following
    yield newest


def two_optimizers_read_ahead() -> None:
    generator_, critic = network(), network()
    optimizers = [sgd(generator_), sgd(critic)]
    for _epoch in range(2):
        for (rows,) in read_ahead(loader()):
            update(critic, optimizers[1], rows)
            update(generator_, optimizers[0], rows)


def evaluation_between_steps() -> None:
    model = network()
    optimizer = sgd(model)
    for number, (rows,) in enumerate(loader()):
        update(model, optimizer, rows)
        if number % 2:
            evaluate(model, loader())


def evaluation_read_ahead() -> None:
    model = network()
    optimizer = sgd(model)
    for number, (rows,) in enumerate(read_ahead(loader())):
        update(model, optimizer, rows)
        if number % 2:
            evaluate(model, read_ahead(loader()))


def evaluation_with_a_loader_training_without() -> None:
    model = network()
    optimizer = sgd(model)
    for number, rows in enumerate(ROWS.split(2)):
        update(model, optimizer, rows)
        if number == 2:
            evaluate(model, loader())


def evaluation_without_loaders() -> None:
    model = network()
    optimizer = sgd(model)
    for rows in ROWS.split(2):
        update(model, optimizer, rows)
        evaluate(model, [(rows,)])


def teacher() -> None:
    model, older = network(), network()
    optimizer = sgd(model)
    for (rows,) in loader():
        with torch.no_grad():
            wanted = older(rows)
        (model(rows) - wanted).square().mean().backward()
        optimizer.step()


def several_forwards() -> None:
    model = network()
    optimizer = sgd(model)
    for (rows,) in loader():
        (model(rows) - model(-rows)).square().mean().backward()
        optimizer.step()


def gradients_by_hand() -> None:
    model = network()
    optimizer = sgd(model)
    parameters = list(model.parameters())
    for (rows,) in loader():
        gradients = torch.autograd.grad(model(rows).square().mean(), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


def engine() -> None:
    """Megatron-LM's way, whose outputs have no data left for the checks of the public function."""
    model = network()
    optimizer = sgd(model)
    for (rows,) in loader():
        loss = model(rows).square().mean()
        run_engine(loss)
        optimizer.step()
        optimizer.zero_grad()


def engine_inside_a_backward() -> None:
    model = network()
    optimizer = sgd(model)
    for (rows,) in loader():
        loss = model(rows).square().mean()
        loss.register_hook(torch.enable_grad()(lambda _: run_engine(model(ROWS).square().mean())))
        loss.backward()
        run_engine(model(rows).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def gradient_penalty() -> None:
    model = network()
    optimizer = sgd(model)
    for (rows,) in loader():
        inputs = rows.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        slope.square().mean().backward()
        optimizer.step()


def schedule() -> None:
    model = network()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for (rows,) in loader():
        update(model, optimizer, rows)
        scheduler.step()


def no_module() -> None:
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for rows in ROWS.split(2):
        (rows @ weight).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def in_backward(model: nn.Module) -> None:
    """An optimizer a parameter, stepped as soon as the gradient is there."""
    optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {
        parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()
    }

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)


def optimizer_in_backward() -> None:
    model = network()
    in_backward(model)
    for (rows,) in loader():
        model(rows).square().mean().backward()


def optimizer_in_backward_without_module() -> None:
    model = network()
    in_backward(model)
    weight, bias, last, shift = model.parameters()
    for rows in ROWS.split(2):
        hidden = torch.tanh(rows @ weight.T + bias)
        (hidden @ last.T + shift).square().mean().backward()


def optimizer_on_a_thread_of_backward() -> None:
    """On a device the hooks of gradients run on autograd's own thread, while the training thread waits."""
    model = network()
    optimizer = sgd(model)

    def elsewhere(_parameter: torch.Tensor) -> None:
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()

    next(model.parameters()).register_post_accumulate_grad_hook(elsewhere)
    for (rows,) in loader():
        model(rows).square().mean().backward()
        optimizer.zero_grad()


def closures(kind: Callable[..., torch.optim.Optimizer]) -> None:
    """Steps that run forward and backward themselves."""
    model = network()
    optimizer = kind(model.parameters(), lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(ROWS).square().mean()
        loss.backward()
        return loss.item()

    for _ in range(5):
        optimizer.step(closure)


def step_that_raises_once() -> None:
    class Fragile(torch.optim.SGD):
        broken = True

        def step(self, closure: Any = None) -> Any:
            if self.broken:
                self.broken = False
                raise ArithmeticError
            return super().step(closure)

    model = network()
    optimizer = Fragile(model.parameters(), lr=0.1)
    for (rows,) in loader():
        model(rows).square().mean().backward()
        try:
            optimizer.step()
        except ArithmeticError:
            optimizer.step()


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


class Trainer(Around):
    """No optimizer, in spite of its methods: its step is all of a train step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(sgd(model))
        self.model = model

    def step(self) -> None:
        """Work on the host, train."""
        time.sleep(0.005)
        update(self.model, self.inner, ROWS)


def optimizer_around_another(kind: Callable[[Any], Around]) -> None:
    model = network()
    optimizer: Any = kind(sgd(model))
    for (rows,) in loader():
        update(model, optimizer, rows)


@pytest.mark.timed
@pytest.mark.parametrize(("kind", "least"), [(Around, 10), (Chained, 15), (lambda inner: Around(Chained(inner)), 25)])
def test_an_optimizer_around_another_is_one_update(kind: Callable[[Any], Around], least: int) -> None:
    """From the second update on all that the outermost one does is optimizer; uninstrument leaves the class alone."""
    before = [vars(kind)["step"] for kind in (Around, Chained)]
    with instrumented() as process:
        optimizer_around_another(kind)
        steps = steps_of(process)
    assert len(steps) == 6
    assert all(step.phases[Phase.OPTIMIZER] >= least * 10**6 for step in steps[1:])
    assert [vars(kind)["step"] for kind in (Around, Chained)] == before


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


@dataclass(frozen=True)
class Expected:
    """What a loop comes to; the phases are those of every step but the first."""

    steps: int
    phases: set[str]
    #: Phases that only some steps have.
    sometimes: frozenset[str] = frozenset()


LOOPS: dict[str, tuple[Callable[[], None], Expected]] = {
    "plain": (plain, Expected(6, PLAIN)),
    "persistent workers": (persistent_workers, Expected(12, PLAIN)),
    "iterable data set": (iterable_data_set, Expected(3, PLAIN)),
    "generator": (generator, Expected(3, PLAIN - {"data"})),
    "foreign loader": (foreign_loader, Expected(3, PLAIN)),
    "accumulation": (accumulation, Expected(2, PLAIN)),
    "two models and optimizers": (two_models_and_optimizers, Expected(6, PLAIN)),
    "two optimizers, read ahead": (two_optimizers_read_ahead, Expected(12, PLAIN)),
    "evaluation": (evaluation_between_steps, Expected(6, PLAIN, frozenset({"evaluation"}))),
    "evaluation, read ahead": (evaluation_read_ahead, Expected(6, PLAIN, frozenset({"evaluation"}))),
    "evaluation with a loader, training without": (
        evaluation_with_a_loader_training_without,
        Expected(6, PLAIN - {"data"}, frozenset({"evaluation"})),
    ),
    "evaluation without loaders": (evaluation_without_loaders, Expected(6, PLAIN - {"data"} | {"evaluation"})),
    "teacher": (teacher, Expected(6, PLAIN)),
    "several forwards": (several_forwards, Expected(6, PLAIN)),
    "gradients by hand": (gradients_by_hand, Expected(6, PLAIN)),
    "engine": (engine, Expected(6, PLAIN)),
    "engine inside a backward": (engine_inside_a_backward, Expected(6, PLAIN)),
    "gradient penalty": (gradient_penalty, Expected(6, PLAIN)),
    "learning rate schedule": (schedule, Expected(6, PLAIN)),
    "no module": (no_module, Expected(6, {"backward", "optimizer"})),
    "optimizer in backward": (optimizer_in_backward, Expected(6, PLAIN)),
    "optimizer in backward, no module": (
        optimizer_in_backward_without_module,
        Expected(6, {"backward", "optimizer"}),
    ),
    "optimizer on a thread of backward": (optimizer_on_a_thread_of_backward, Expected(6, PLAIN)),
    "closure": (lambda: closures(torch.optim.LBFGS), Expected(5, PLAIN - {"data"})),
    "closure and parent's step": (lambda: closures(Both), Expected(5, PLAIN - {"data"})),
    "step that raises once": (step_that_raises_once, Expected(6, PLAIN)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_has_its_steps_and_phases(name: str) -> None:
    """The number of steps is exactly that of the updates, however the loop is written."""
    loop, expected = LOOPS[name]
    with instrumented() as process:
        loop()
        steps = steps_of(process)
        assert process.recorder.phase == 0
    assert len(steps) == expected.steps
    for step in steps[1:]:
        assert phases(step) - expected.sometimes == expected.phases - expected.sometimes
    assert expected.sometimes <= set().union(*map(phases, steps))
    assert all(sum(step.phases) == step.duration for step in steps)


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
