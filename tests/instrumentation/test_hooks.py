"""Hooks in this process: what they record, that they come off without a trace, and that they fail alone."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import logging
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # its operators are patched once it is there
import torch.distributed.checkpoint
from torch import nn
from torch.distributed import device_mesh
from torch.utils.data import DataLoader, TensorDataset, dataloader
from torch.utils.data._utils import worker

import laggard
from laggard import _process
from laggard._events import CODE_BITS, EVALUATION_FORWARD, FIRST_BATCH, ITERATOR, OPTIMIZER_STEP
from laggard._hooks import HOOKS, Hook, forward
from laggard._hooks.dataloader import DataLoaderHook
from laggard._hooks.forward import ForwardHook
from laggard._partition import StepPartition
from laggard.shared.phases import Phase
from tests.instrumentation import inside
from tests.instrumentation.inside import by_value, hook_named

_CALL = nn.Module.__call__


class Model(nn.Module):
    """A model with a nested module of its own class."""

    def __init__(self, *, inner: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner = Model(inner=False) if inner else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.layer(x))
        return x if self.inner is None else self.inner(x)


class NestedStep(torch.optim.SGD):
    """An optimizer that calls its parent's step, which fires torch's hooks twice."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


#: Everything that the hooks patch, as (owner, attribute).
PATCHED: tuple[tuple[Any, str], ...] = (
    (dataloader._BaseDataLoaderIter, "__next__"),
    (dataloader._BaseDataLoaderIter, "__init__"),
    (dataloader._MultiProcessingDataLoaderIter, "__init__"),
    (dataloader._MultiProcessingDataLoaderIter, "_reset"),
    (worker, "_worker_loop"),
    (torch, "save"),
    (torch, "load"),
    (torch.serialization, "save"),
    (torch.serialization, "load"),
    (torch.distributed.checkpoint, "save"),
    (torch.distributed.checkpoint, "async_save"),
    (torch.distributed.checkpoint, "load"),
    (torch.distributed.checkpoint.state_dict_saver, "save"),
    (torch.distributed.checkpoint.state_dict_saver, "async_save"),
    (torch.distributed.checkpoint.state_dict_loader, "load"),
    (torch.autograd, "backward"),
    (nn.Module, "__call__"),
    (nn.parallel.DistributedDataParallel, "__call__"),
    (nn.parallel.DistributedDataParallel, "_sync_buffers"),
    (dist.Reducer, "prepare_for_backward"),  # pyright: ignore[reportPrivateImportUsage] - where DDP finds it
    (dist.Work, "wait"),
    (device_mesh.DeviceMesh, "__init__"),
    (torch.ops._c10d_functional.wait_tensor, "_op"),
    (torch.ops._c10d_functional.wait_tensor.default, "_op"),
    (dist, "init_process_group"),
    (dist.distributed_c10d, "init_process_group"),
    (dist.distributed_c10d, "_register_pg_in_world"),
    (Model, "__call__"),
)


def entries() -> list[Any]:
    """What stands in the owners' own dictionaries, torch's global optimizer hooks and the collector's callbacks."""
    optimizer = torch.optim.Optimizer
    own = [vars(owner).get(name) for owner, name in PATCHED]
    module = __import__("sys").modules[optimizer.__module__]
    return [
        *own,
        list(gc.callbacks),
        dict(module._global_optimizer_pre_hooks),
        dict(module._global_optimizer_post_hooks),
    ]


def codes(process: _process.Process) -> list[int]:
    """Codes of the events so far."""
    return [code & CODE_BITS for code, _, _ in process.recorder.drain()]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    """One plain step; returns the loss."""
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def test_one_step_gives_one_event_a_phase(process: _process.Process) -> None:
    """A nested module of the same class and a nested optimizer step add nothing; the first batch is marked."""
    model = Model()
    optimizer = NestedStep(model.parameters(), lr=0.1)
    batches = iter(DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2))
    assert codes(process) == [ITERATOR]
    for expected in ([FIRST_BATCH], []):
        (batch,) = next(batches)
        train_step(model, optimizer, batch)
        assert codes(process) == [
            Phase.DATA,
            *expected,
            Phase.FORWARD,
            Phase.BACKWARD,
            OPTIMIZER_STEP,
        ]


def test_a_model_may_name_its_inputs_as_it_likes(process: _process.Process) -> None:
    """No parameter of a wrapper's own is in the way of one of the model's."""

    class Plugged(nn.Module):
        def forward(self, module: torch.Tensor) -> torch.Tensor:
            return module * 2

    assert Plugged()(module=torch.ones(1)) == 2
    assert [event[0] for event in process.recorder.drain()] == [Phase.FORWARD]


def test_the_search_for_outermost_modules_ends_and_leaves_only_their_classes(process: _process.Process) -> None:
    """After two steps nn.Module is as it was and only the model's class carries a wrapper, with the same events."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (hook,) = [hook for hook in process._parts if isinstance(hook, ForwardHook)]
    partition = StepPartition(warmup_steps=0)
    before = vars(nn.Module)["__call__"]
    for _ in range(4):
        train_step(model, optimizer, torch.ones(2, 4))
    hook.steps_ended(partition.feed(process.recorder.drain()))
    assert vars(nn.Module)["__call__"] is not before
    assert "__call__" in vars(Model)
    assert "__call__" not in vars(nn.Linear)
    train_step(model, optimizer, torch.ones(2, 4))
    assert codes(process) == [Phase.FORWARD, Phase.BACKWARD, OPTIMIZER_STEP]


def test_uninstrument_restores_every_attribute() -> None:
    """Every patched attribute is the very object that it was, also where the owner had none of its own."""
    before = entries()
    _process.instrument()
    model = Model()
    train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 4))
    assert entries() != before
    _process.uninstrument()
    assert entries() == before


@contextmanager
def patched_by_another(calls: list[str]) -> Iterator[None]:
    """Another tool that patches ``nn.Module`` for good, as TraceML does, and notes which modules are called."""
    below = nn.Module.__call__

    def other(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(module).__name__)
        return below(module, *args, **kwargs)

    nn.Module.__call__ = other
    try:
        yield
        assert vars(nn.Module)["__call__"] is other
    finally:
        nn.Module.__call__ = inspect.unwrap(below)


def test_a_patch_of_somebody_else_on_top_of_ours_stays(process: _process.Process) -> None:
    """Uninstrumenting under another wrapper leaves it in place, and what it calls still works."""
    calls: list[str] = []
    with patched_by_another(calls):
        _process.uninstrument()
        assert nn.Identity()(1) == 1
    assert calls == ["Identity"]
    assert codes(process) == []


def test_a_class_that_comes_under_a_patch_of_somebody_else_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that stands for a whole model may be imported while another tool has patched modules on top of ours."""
    (tmp_path / "whole_model.py").write_text("import torch\nclass Whole(torch.nn.Identity):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(forward._OUTERMOST, "whole_model", "Whole")
    calls: list[str] = []
    with inside.instrumented() as process, patched_by_another(calls):
        model = import_module("whole_model").Whole()
        assert hook_named(process, "forward").installed
        assert model(torch.ones(1, requires_grad=True)) == 1
        assert (calls, codes(process)) == (["Whole"], [Phase.FORWARD])


@pytest.mark.usefixtures("process")
def test_twice_is_once(caplog: pytest.LogCaptureFixture) -> None:
    """A second instrument changes nothing; a second uninstrument says that it does."""
    patched = entries()
    laggard.instrument()
    assert entries() == patched
    laggard.uninstrument()
    laggard.uninstrument()
    assert [record.message for record in caplog.records] == ["this process is not instrumented"]


@pytest.mark.usefixtures("process")
def test_models_stay_copyable_and_exportable() -> None:
    """Pickle, deepcopy and export of an instrumented model give what they gave before."""
    model = Model()
    attributes = set(vars(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_step(model, optimizer, torch.ones(2, 4))
    assert set(vars(model)) == attributes
    x = torch.ones(2, 4)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))


def test_a_class_that_is_pickled_by_value_calls_what_it_called(process: _process.Process) -> None:
    """Cloudpickle does it to a script's classes, on the way to Ray's workers or MLflow: nothing of ours is in them."""
    (hook,) = [hook for hook in process._parts if isinstance(hook, ForwardHook)]
    hook._wrap(Model)
    model, rows = Model(), torch.ones(2, 4)
    assert torch.equal(by_value(vars(Model)["__call__"])(model, rows), model(x=rows))


@pytest.mark.parametrize("name", ["dataloader", "forward", "backward", "optimizer"])
def test_a_failing_hook_is_off_and_training_is_the_same(
    name: str, process: _process.Process, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that raises when it is installed or called disappears with one line; the losses are bit-identical."""

    def losses() -> list[float]:
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2)
        return [train_step(model, optimizer, batch) for (batch,) in loader]

    healthy = losses()
    process.recorder.drain()
    (hook,) = [hook for hook in process._parts if hook.name == name]
    process.part_failed(hook, ValueError("on purpose"))
    assert losses() == healthy
    seen = set(codes(process))
    lost = {
        "dataloader": Phase.DATA,
        "forward": Phase.FORWARD,
        "backward": Phase.BACKWARD,
        "optimizer": OPTIMIZER_STEP,
    }
    assert lost[name] not in seen
    assert seen >= set(lost.values()) - {lost[name]}
    assert [record.message for record in caplog.records] == [
        f"hook {name} failed and is off, training goes on: ValueError('on purpose')"
    ]


def test_an_instrumentation_that_fails_costs_the_script_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tool that rewrites our modules as they are imported, as a checker of types, may break whatever it likes."""

    def rewritten(_host: Any) -> None:
        raise TypeError("on purpose")

    before = entries()
    monkeypatch.setattr(_process, "Log", rewritten)
    laggard.instrument()
    assert _process.current() is None
    assert entries() == before
    (record,) = caplog.records
    assert record.message == "this process cannot be instrumented, training goes on: TypeError('on purpose')"


def test_an_exception_inside_a_guarded_hook_never_gets_out(
    process: _process.Process, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook whose patch raises is uninstalled and logged once."""

    class Broken(DataLoaderHook):
        name = "broken"

    hook = Broken(process)
    hook.installed = True
    guarded = hook.guarded(lambda: 1 / 0)  # pyright: ignore[reportArgumentType] - it gives nothing
    guarded()
    guarded()
    assert not hook.installed
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING


def test_exceptions_of_the_loop_pass_through_unchanged(process: _process.Process) -> None:
    """What a data set, a model or an optimizer raises reaches the loop as it was, and the next step is whole."""

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("model")

    class BrokenStep(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise KeyError("step")

    with pytest.raises(KeyError, match="model"):
        Broken()(torch.ones(1))
    model = Model()
    with pytest.raises(KeyError, match="step"):
        train_step(model, BrokenStep(model.parameters(), lr=0.1), torch.ones(2, 4))
    with pytest.raises(RuntimeError):
        torch.ones(2).sum().backward()
    process.recorder.drain()
    train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 4))
    assert codes(process) == [Phase.FORWARD, Phase.BACKWARD, OPTIMIZER_STEP]
    assert process.recorder.phase == Phase.OTHER


def test_a_disabled_hook_is_not_installed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """LAGGARD_DISABLED_HOOKS leaves a hook out and names what it does not know."""
    monkeypatch.setenv("LAGGARD_DISABLED_HOOKS", "backward, nonsense")
    before = torch.autograd.backward
    _process.instrument()
    assert torch.autograd.backward is before
    _process.uninstrument()
    assert "nonsense" in caplog.text


@pytest.mark.parametrize("kind", [kind for kind in HOOKS if kind.former_name], ids=lambda kind: kind.name)
def test_a_hook_is_disabled_by_its_old_name(
    kind: type[Hook], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose name has changed is left out by either, and nothing is said to be unknown."""
    for name in (kind.name, kind.former_name):
        monkeypatch.setenv("LAGGARD_DISABLED_HOOKS", name)
        _process.instrument()
        assert _process._current is not None
        assert {hook.name for hook in HOOKS} - {part.name for part in _process._current._parts} == {kind.name}
        _process.uninstrument()
    assert caplog.text == ""


def test_fx_traces_the_graph_that_it_traces_without_us(process: _process.Process) -> None:
    """While the outermost modules are searched for, and when their classes have a wrapper."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    head = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    (hook,) = [hook for hook in process._parts if isinstance(hook, ForwardHook)]

    def traced() -> list[tuple[str, str]]:
        return [(node.op, str(node.target)) for node in torch.fx.symbolic_trace(model).graph.nodes]

    right = [("placeholder", "input"), *[("call_module", name) for name in "012"], ("output", "output")]
    assert traced() == right
    partition = StepPartition(warmup_steps=0)
    for _ in range(4):
        train_step(head, optimizer, torch.ones(2, 4))
    hook.steps_ended(partition.feed(process.recorder.drain()))
    assert "__call__" in vars(nn.Linear)
    assert traced() == right
    assert codes(process) == []
    train_step(head, optimizer, torch.ones(2, 4))
    assert codes(process) == [Phase.FORWARD, Phase.BACKWARD, OPTIMIZER_STEP]


def test_graph_modules_are_found_like_other_modules(process: _process.Process) -> None:
    """As the model, also when torch.fx has written its class again; what torch.fx traces of it is the same."""
    model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (hook,) = [hook for hook in process._parts if isinstance(hook, ForwardHook)]
    partition = StepPartition(warmup_steps=0)
    for _ in range(4):
        train_step(model, optimizer, torch.ones(2, 4))
    hook.steps_ended(partition.feed(process.recorder.drain()))
    for _ in range(2):
        train_step(model, optimizer, torch.ones(2, 4))
        assert codes(process) == [Phase.FORWARD, Phase.BACKWARD, OPTIMIZER_STEP]
        model.recompile()
    traced = torch.fx.symbolic_trace(model)
    assert [str(node.target) for node in traced.graph.nodes] == ["input", "0", "1", "output"]
    assert codes(process) == []


class Task(nn.Module):
    """Stands around the model that an evaluation calls by itself, as a wrapper that computes the loss does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.inner(x).square().mean()


class Other(nn.Module):
    """A class that training never calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what it is given."""
        return x


def test_what_only_an_evaluation_calls_is_searched_for_with_each_iterator(process: _process.Process) -> None:
    """nn.Module is patched for two batches of it; the inside of a wrapper needs no search."""
    inner = Model()
    model = Task(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = vars(nn.Module)["__call__"]
    (hook,) = [hook for hook in process._parts if isinstance(hook, ForwardHook)]
    partition = StepPartition(warmup_steps=0)
    for _ in range(4):
        loss = model(torch.ones(2, 4))
        loss.backward()
        optimizer.step()
    hook.steps_ended(partition.feed(process.recorder.drain()))
    searched = vars(nn.Module)["__call__"]
    assert searched is not before
    with torch.no_grad():
        inner.eval()(torch.ones(2, 4))
        Other().eval()(torch.ones(2, 4))
    assert codes(process) == [EVALUATION_FORWARD]
    other = Other().eval()
    batches = iter(DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2))
    with torch.no_grad():
        for number in range(3):
            other(next(batches)[0])
            hook.steps_ended([])
            assert (vars(nn.Module)["__call__"] is searched) == (number == 2)
    assert codes(process) == [
        ITERATOR,
        Phase.DATA,
        FIRST_BATCH,
        *[EVALUATION_FORWARD, Phase.DATA] * 2,
        EVALUATION_FORWARD,
    ]
    assert "__call__" in vars(Other)


def test_another_model_is_searched_for_with_its_optimizer(process: _process.Process) -> None:
    """After folds of one model the next is timed from its first steps on, though both call the same loss module.

    Steps of the model before it, which are drained late, end no search.
    """
    (hook,) = [hook for hook in process._parts if isinstance(hook, ForwardHook)]
    partition = StepPartition(warmup_steps=0)
    model: nn.Module
    for fold in range(14):
        model = nn.Sequential(Model()) if fold < 12 else Task(Model())
        loss = nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hook.steps_ended(partition.feed(process.recorder.drain()))
        for _ in range(32):
            output = model(torch.ones(2, 4))
            loss(output, torch.zeros_like(output)).backward()
            optimizer.step()
        hook.steps_ended(partition.feed(process.recorder.drain()))
        assert vars(nn.Module)["__call__"] is _CALL
        assert ("__call__" in vars(Task)) == (fold >= 12)
    # Parsers of command lines, as LightningCLI's, find the parameters of an optimizer in the source of this.
    assert inspect.isfunction(torch.optim.Optimizer.__init__)


def test_a_loop_that_makes_a_loader_in_each_step_is_searched_now_and_then(process: _process.Process) -> None:
    """Eight searches may find nothing new, and one more in 32 steps."""
    (hook,) = [hook for hook in process._parts if isinstance(hook, ForwardHook)]
    partition = StepPartition(warmup_steps=0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    searched: list[int] = []
    for number in range(100):
        (batch,) = next(iter(DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2)))
        train_step(model, optimizer, batch)
        if vars(nn.Module)["__call__"] is not _CALL:
            searched.append(number)
        hook.steps_ended(partition.feed(process.recorder.drain()))
    assert searched == [*range(11), 33, 65, 97]


def test_a_model_on_another_thread_hides_none(process: _process.Process) -> None:
    """While another thread is inside of a model, the training thread's forwards are timed."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_step(model, optimizer, torch.ones(2, 4))
    codes(process)
    inside, done = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            done.wait()
            return x

    thread = threading.Thread(target=lambda: Slow()(torch.ones(1)))
    thread.start()
    inside.wait()
    train_step(model, optimizer, torch.ones(2, 4))
    done.set()
    thread.join()
    assert codes(process) == [Phase.FORWARD, Phase.BACKWARD, OPTIMIZER_STEP]
