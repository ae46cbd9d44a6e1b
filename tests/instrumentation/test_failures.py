"""What may go wrong in a hook or in the script stays where it belongs."""

# ruff: noqa: D103 - helpers that raise say so by their name

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from laggard._hooks import Hook
from laggard._part import Part
from laggard._partition import StepPartition
from tests.instrumentation.inside import instrumented

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*")


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    """A group of one rank, for the hooks of collectives."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage] - torch documents it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def losses() -> list[float]:
    """A little of everything that hooks reach: loader, replica, compiled function, scaler, optimizer, collective."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.load_state_dict(optimizer.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loss_of = torch.compile(lambda out: out.square().mean(), backend="eager")
    found: list[float] = []
    for (rows,) in DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=3):
        loss = loss_of(model(rows))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(mean.item())
    return found


def drained(process: Any) -> None:
    """What the drain would ask of the hooks."""
    steps = StepPartition(warmup_steps=0).feed(process.recorder.drain())
    for hook in process._parts:
        hook.guarded(hook.steps_ended)(steps)


def run(breaks: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], set[tuple[str, str]]]:
    """Train instrumented, with one function of one hook broken; return the losses and which functions were called."""
    guarded = Part.guarded
    called: set[tuple[str, str]] = set()

    def watched(hook: Part, function: Callable[..., None]) -> Callable[..., None]:
        name = getattr(function, "__name__", "partial")
        if (
            isinstance(function, MethodType)
            and function.__func__ in (*vars(Part).values(), *vars(Hook).values())
            and name != "suspend"
        ):
            return guarded(hook, function)  # the default of the base class does nothing

        def maybe(*args: Any, **kwargs: Any) -> None:
            called.add((hook.name, name))
            if breaks == (hook.name, name):
                raise ArithmeticError("on purpose")
            function(*args, **kwargs)

        return guarded(hook, maybe)

    torch._dynamo.reset()  # which also forgets who listens, so before
    with monkeypatch.context() as patches:
        patches.setattr(Part, "guarded", watched)
        with instrumented() as process:
            found = losses()
            drained(process)
            off = {hook.name for hook in process._parts if not hook.installed}
            assert off == ({breaks[0]} if breaks else set())
    return found, called


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What laggard logged."""
    return [record.message for record in caplog.records if record.name.startswith("laggard")]


def test_a_failure_of_any_function_of_any_hook_costs_that_hook_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every function that hooks hand to torch or to the drain is broken in turn: losses stay bit for bit, one line."""
    expected = losses()
    healthy, functions = run(None, monkeypatch)
    assert healthy == expected
    assert lines(caplog) == []
    assert {name for name, _ in functions} >= {"forward", "backward", "optimizer", "scaler", "torch_compile", "ddp"}
    for broken in sorted(functions):
        caplog.clear()
        assert (broken, run(broken, monkeypatch)[0]) == (broken, expected)
        assert lines(caplog) == [f"hook {broken[0]} failed and is off, training goes on: ArithmeticError('on purpose')"]


class Mine(Exception):  # noqa: N818 - a script's own name
    """What the script raises."""


def raising(*_args: Any, **_kwargs: Any) -> Any:
    raise Mine


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    __getitem__ = raising

    def __len__(self) -> int:
        return 4


class Model(nn.Module):
    forward = raising


class Stepper(torch.optim.SGD):
    step = raising


def in_backward() -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(raising)
    x.sum().backward()


def in_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(raising)
    torch.autograd.grad(x.sum(), x)


def in_scaler(*, fused: bool) -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = Stepper([weight], fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)


def in_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        raising()
        return x

    torch.compile(function, backend="eager")(torch.ones(1))


RAISING: dict[str, Callable[[], Any]] = {
    "data set": lambda: next(iter(DataLoader(Rows()))),
    "model": lambda: Model()(torch.ones(1)),
    "backward": in_backward,
    "gradient": in_gradient,
    "optimizer": lambda: Stepper([torch.ones(1, requires_grad=True)]).step(),
    "load": lambda: Stepper([torch.ones(1, requires_grad=True)]).load_state_dict({"param_groups": []}),
    "scaler": lambda: in_scaler(fused=False),
    "fused": lambda: in_scaler(fused=True),
    "scaler's update": lambda: torch.amp.GradScaler("cpu").update(),
    "compiled": in_compiled,
    "compile": lambda: torch.compile(3),  # pyright: ignore[reportArgumentType, reportCallIssue] - on purpose
}


@pytest.mark.parametrize("name", RAISING)
def test_what_the_script_raises_is_what_it_gets(name: str) -> None:
    """The same type with the same text as without laggard, and afterwards no phase is left open."""
    function = RAISING[name]
    with pytest.raises(Exception) as bare:  # noqa: PT011 - the point is that both are equal
        function()
    with instrumented() as process:
        with pytest.raises(Exception) as observed:  # noqa: PT011 - as above
            function()
        assert {hook.name for hook in process._parts if not hook.installed} == set()
        if name != "optimizer":  # told only by the next step, see step_that_raises_once in loops.py
            assert process.recorder.phase in (0, 5)
    assert (observed.type, str(observed.value)) == (bare.type, str(bare.value))


def entries(owner: Any) -> dict[str, int]:
    """What stands in an owner's own dictionary, but for modules that were imported into it."""
    return {name: id(value) for name, value in vars(owner).items() if not isinstance(value, ModuleType)}


def test_uninstrument_leaves_every_owner_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was patched has the very entries that it had, and torch holds no function of ours anywhere it lists."""
    losses()  # so that all is imported
    before: dict[int, tuple[Any, dict[str, int]]] = {}
    replace = Hook.replace

    def watched(hook: Hook, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before.setdefault(id(owner), (owner, entries(owner)))
        replace(hook, owner, name, make)

    monkeypatch.setattr(Hook, "replace", watched)
    with instrumented() as process:
        losses()
        drained(process)
        assert any(entries(owner) != had for owner, had in before.values())
    assert len(before) > 8
    for owner, had in before.values():
        assert (owner, entries(owner)) == (owner, had)
    optimizers = sys.modules[torch.optim.Optimizer.__module__]
    compiler = torch._dynamo.callback.callback_handler
    listed = [
        *optimizers._global_optimizer_pre_hooks.values(),
        *optimizers._global_optimizer_post_hooks.values(),
        *compiler.start_callbacks,
        *compiler.end_callbacks,
    ]
    assert [function for function in listed if isinstance(function, FunctionType)] == []
