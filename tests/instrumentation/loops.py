"""Every shape of training loop, and what its steps are made of."""

# ruff: noqa: D103 - the names of the loops say what they are

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import laggard

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


def another_optimizer_for_each_task() -> None:
    """Reptile's way: each task trains a copy of the model, with an optimizer of its own."""
    for _ in range(4):
        model = network()
        optimizer = sgd(model)
        for rows in ROWS.split(4):
            update(model, optimizer, rows)


def frozen(*, evaluates: bool) -> None:
    """A model in eval mode that is trained, or that trains its input: style transfer, adversarial patches."""
    model = network().eval()
    optimizer = sgd(model)
    for rows in ROWS.split(2):
        update(model, optimizer, rows)
        if evaluates:
            with torch.no_grad():
                model(rows)


def evaluation_with_gradients_without_loaders() -> None:
    model = network()
    optimizer = sgd(model)
    for rows in ROWS.split(2):
        update(model, optimizer, rows)
        model.eval()
        model(rows)
        model.train()


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
    "another optimizer for each task": (another_optimizer_for_each_task, Expected(12, PLAIN - {"data"})),
    "frozen": (lambda: frozen(evaluates=False), Expected(6, PLAIN - {"data"})),
    "frozen, with an evaluation": (lambda: frozen(evaluates=True), Expected(6, PLAIN - {"data"} | {"evaluation"})),
    "evaluation with gradients, without loaders": (
        evaluation_with_gradients_without_loaders,
        Expected(6, PLAIN - {"data"} | {"evaluation"}),
    ),
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
