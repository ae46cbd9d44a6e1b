"""Copies to the device, on real tensors: the meta device stands for the GPU."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from laggard._hooks.transfer import TransferHook, _Timed
from laggard._process import Process
from laggard.shared.phases import Phase

METHODS = ("to", "cuda")


@pytest.fixture
def hook(process: Process) -> TransferHook:
    """The hook of this process, which has just proved that it trains."""
    torch.ones(1, requires_grad=True).sum().backward()
    process.recorder.drain()
    (found,) = [hook for hook in process._parts if isinstance(hook, TransferHook)]
    return found


@pytest.fixture
def installed(hook: TransferHook, monkeypatch: pytest.MonkeyPatch) -> TransferHook:
    """The hook after a drain that found a device in use."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    hook.guarded(hook.steps_ended)([])
    assert all(name in vars(torch.Tensor) for name in METHODS)
    return hook


def codes(process: Process) -> list[int]:
    """Codes of the events since the last call."""
    return [code for code, _, _ in process.recorder.drain()]


def test_without_a_device_nothing_is_touched(hook: TransferHook) -> None:
    """On a machine without a GPU the methods stay torch's own."""
    hook.guarded(hook.steps_ended)([])
    assert not any(name in vars(torch.Tensor) for name in METHODS)


@pytest.mark.usefixtures("installed")
def test_what_leaves_the_cpu_is_a_copy_and_nothing_else_is(process: Process) -> None:
    """Only a plain tensor that came from the CPU and is not there any more counts, once per call."""
    x = torch.ones(2)
    moved = x.to("meta")
    assert codes(process) == [Phase.H2D]
    x.to(device=torch.device("meta"), non_blocking=True)
    nn.Parameter(x).to(moved)
    to: Any = x.to
    to(tensor=moved)
    assert codes(process) == [Phase.H2D] * 3
    x.to("cpu")
    x.to(torch.float64)
    moved.to(torch.float64)
    assert codes(process) == []


@pytest.mark.usefixtures("hook")
def test_the_time_of_a_copy_is_that_of_the_call(process: Process) -> None:
    """A copy that holds the thread for 20 ms is 20 ms of h2d; an error passes through and leaves nothing."""

    def copy(_tensor: torch.Tensor, device: str) -> torch.Tensor:
        time.sleep(0.02)
        return torch.ones(1, device=device)

    method = _Timed(process.recorder, (torch.Tensor,), torch.compiler.is_compiling, copy)
    with pytest.raises(RuntimeError, match="nonsense"):
        method(torch.ones(1), "nonsense")
    method(torch.ones(1), "meta")
    ((code, started, ended),) = process.recorder.drain()
    assert code == Phase.H2D
    assert 20_000_000 <= ended - started < 60_000_000  # a busy machine sleeps longer


@pytest.mark.usefixtures("installed")
def test_lazy_modules_and_subclasses_work_as_before(process: Process) -> None:
    """Torch compares methods with tables of its own; what stands in for one equals it."""
    assert nn.LazyLinear(3).to(torch.float64).weight.dtype == torch.float64
    seen: list[Any] = []

    class Noisy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(2).as_subclass(Noisy)
    seen.clear()
    tensor.to(torch.float64)
    # The subclass sees one call, of the method under its name, and no question for the device before it.
    assert [func.__name__ for func in seen] == ["to"]
    assert seen == [torch._C.TensorBase.to]
    assert {torch._C.TensorBase.to: 1}[seen[0]] == 1
    assert codes(process) == []


def test_compiled_functions_stay_whole(hook: TransferHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function compiled before is not compiled again, one compiled after is one graph, both compute the same."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.float64).to("cpu") * 2).sum()

    def another(x: torch.Tensor) -> torch.Tensor:
        return function(x)

    graphs: list[int] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(1)
        return graph

    torch._dynamo.reset()
    before = torch.compile(function, backend=backend, fullgraph=True)
    expected = before(torch.ones(3))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    hook.guarded(hook.steps_ended)([])
    assert before(torch.ones(3)) == expected
    assert len(graphs) == 1
    after = torch.compile(another, backend=backend, fullgraph=True)
    assert after(torch.ones(3)) == expected
    assert len(graphs) == 2
    hook.uninstall()
    assert before(torch.ones(3)) == after(torch.ones(3)) == expected
    assert len(graphs) == 2


def test_uninstalling_leaves_torchs_own_methods(installed: TransferHook) -> None:
    """The class has no entry of ours; a method that was bound before goes on working."""
    bound = torch.ones(2).to
    installed.uninstall()
    assert not any(name in vars(torch.Tensor) for name in METHODS)
    assert torch.Tensor.to is torch._C.TensorBase.to
    assert bound("meta").device.type == "meta"
